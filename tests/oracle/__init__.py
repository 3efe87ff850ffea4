"""An oracle for the kernel, written from the specification alone: a slow model, documents, and walks over them."""
