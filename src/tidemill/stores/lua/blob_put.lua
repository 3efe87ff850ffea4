-- Make a blob active before its pieces are written, so that nobody removes them.
--
-- KEYS[1] blobs  hash: tenant, digest → state (0 active, 1 grace), since when in ms, size, 1 if it is kept
-- KEYS[2] index  zset by bytes: tenant, digest
-- ARGV[1] tenant and digest   ARGV[2] size   ARGV[3] 1: keep it   ARGV[4] a date older than this (ms) is renewed
--
-- Answers the size that an existing one has, or -1.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = redis.call('HGET', KEYS[1], ARGV[1])
local since, kept, before = now, ARGV[3], -1
if found then
  local state, at, size, was_kept = string.match(found, '(%d) (%d+) (%d+) (%d)')
  before = tonumber(size)
  if state == '0' and tonumber(at) >= now - tonumber(ARGV[4]) then
    since = tonumber(at)
  end
  if was_kept == '1' then
    kept = '1'
  end
end
redis.call('HSET', KEYS[1], ARGV[1], string.format('0 %.0f %s %s', since, ARGV[2], kept))
redis.call('ZADD', KEYS[2], 0, ARGV[1])
return before
