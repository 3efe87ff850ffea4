-- Move a blob to another state; one that is kept stays active.
--
-- KEYS[1] blobs (see blob_put.lua)
-- ARGV[1] tenant and digest   ARGV[2] the state it must have   ARGV[3] the state it gets
--
-- Answers 1 if it was moved.

local found = redis.call('HGET', KEYS[1], ARGV[1])
if not found then
  return 0
end
local state, _, size, kept = string.match(found, '(%d) (%d+) (%d+) (%d)')
if state ~= ARGV[2] or (kept == '1' and ARGV[3] == '1') then
  return 0
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[1], ARGV[1], string.format('%s %.0f %s %s', ARGV[3], now, size, kept))
return 1
