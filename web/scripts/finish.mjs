// After `vite build`: compresses the files, and measures the script that the first page needs.
import { readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";

const LIMIT_KB = 350;
const FIRST = "src/runs/index.tsx";
const folder = process.env.OUT_DIR ?? "dist";

const manifest = JSON.parse(readFileSync(join(folder, "manifest.json"), "utf8"));
rmSync(join(folder, "manifest.json"));

const compressed = new Map();
for (const entry of readdirSync(folder, { recursive: true })) {
  const path = join(folder, entry);
  if (!statSync(path).isFile() || entry === "index.html") continue;
  const body = readFileSync(path);
  const gzip = gzipSync(body, { level: 9 });
  const brotli = brotliCompressSync(body, { params: { [constants.BROTLI_PARAM_SIZE_HINT]: body.length } });
  compressed.set(entry.replaceAll("\\", "/"), gzip.length);
  if (gzip.length < body.length * 0.9) {
    writeFileSync(`${path}.gz`, gzip);
    writeFileSync(`${path}.br`, brotli);
  }
}

const needed = new Set();
function need(name) {
  if (needed.has(name) || !manifest[name]) return;
  needed.add(name);
  for (const each of manifest[name].imports ?? []) need(each);
}
need("index.html");
need(FIRST);
const bytes = [...needed].reduce((sum, name) => sum + (compressed.get(manifest[name].file) ?? 0), 0);
const kb = Math.ceil(bytes / 1000);
console.log(`script of the first page: ${kb} KB compressed (at most ${LIMIT_KB})`);
if (kb > LIMIT_KB) process.exit(1);
