-- Give back the lock of claims under caps, unless it has expired.
--
-- KEYS[1] the lock   ARGV[1] who holds it

if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
