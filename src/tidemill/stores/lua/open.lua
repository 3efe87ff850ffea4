-- Open a partition, which is made if it does not exist.
--
-- KEYS[1] meta
-- ARGV[1] the id for a new store, empty to change nothing   ARGV[2] its number of partitions   ARGV[3] the format
--
-- Answers the id, the number of partitions, the format and the time.

local found = redis.call('HMGET', KEYS[1], 'store', 'partitions', 'format')
if not found[1] and ARGV[1] ~= '' then
  redis.call('HSET', KEYS[1], 'store', ARGV[1], 'partitions', ARGV[2], 'format', ARGV[3])
  found = { ARGV[1], ARGV[2], ARGV[3] }
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if ARGV[1] ~= '' then
  -- Sessions of processes that are gone.
  for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(name, 1, 2) == 's:' then
      local last = redis.call('HGET', KEYS[1], name)
      if struct.unpack('>I8', last) < now - 3600000 then
        redis.call('HDEL', KEYS[1], name)
      end
    end
  end
end
return { found[1], found[2], found[3], now }
