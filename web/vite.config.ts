import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// Addresses of files are relative to the base of index.html, so that one build works below any path.
export default defineConfig({
  base: "./",
  plugins: [react()],
  build: {
    outDir: process.env.OUT_DIR ?? "dist",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    sourcemap: false,
    manifest: "manifest.json",
  },
  worker: { format: "es" },
  server: { proxy: { "/api": process.env.TIDEMILL_SERVER ?? "http://127.0.0.1:8321" } },
});
