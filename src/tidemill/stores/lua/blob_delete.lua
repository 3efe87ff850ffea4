-- Delete a blob that is in grace since before a moment and not kept.
--
-- KEYS[1] blobs   KEYS[2] index (see blob_put.lua), then its pieces
-- ARGV[1] tenant and digest   ARGV[2] the moment in ms
--
-- Answers 1 if it was deleted.

local found = redis.call('HGET', KEYS[1], ARGV[1])
if not found then
  return 0
end
local state, since, _, kept = string.match(found, '(%d) (%d+) (%d+) (%d)')
if state ~= '1' or kept == '1' or tonumber(since) >= tonumber(ARGV[2]) then
  return 0
end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
for number = 3, #KEYS do
  redis.call('UNLINK', KEYS[number])
end
return 1
