-- Open a partition, which is made if it does not exist.
--
-- KEYS[1] meta
-- ARGV[1] the id for a new store, empty to make none   ARGV[2] its number of partitions   ARGV[3] the format
--
-- Answers the id, the number of partitions, the format and the time.

local found = redis.call('HMGET', KEYS[1], 'store', 'partitions', 'format')
if not found[1] and ARGV[1] ~= '' then
  redis.call('HSET', KEYS[1], 'store', ARGV[1], 'partitions', ARGV[2], 'format', ARGV[3])
  found = { ARGV[1], ARGV[2], ARGV[3] }
end
local time = redis.call('TIME')
return { found[1], found[2], found[3], time[1] * 1000 + math.floor(time[2] / 1000) }
