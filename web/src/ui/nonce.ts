import { setNonce } from "get-nonce";

/** The policy of the server allows style elements with this nonce only (CodeMirror, dialogs). Empty in development. */
export const STYLE_NONCE = document.querySelector<HTMLMetaElement>("meta[name=style-nonce]")?.nonce ?? "";

if (STYLE_NONCE) setNonce(STYLE_NONCE);
