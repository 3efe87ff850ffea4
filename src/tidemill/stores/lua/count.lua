-- How many rows have all marks.
--
-- KEYS[1] meta   KEYS[2] terms (see rows.lua)
-- ARGV[1] id of the store   ARGV[2] the place to begin below, or empty   ARGV[3] how many entries to walk, then the marks
--
-- Answers the number and the last place that was visited (nil: the end was reached).

if redis.call('HGET', KEYS[1], 'store') ~= ARGV[1] then
  return redis.error_reply('EMPTIED the store is gone')
end
local TERMS, FIRST = KEYS[2], 4
-- include walk
if #ARGV == FIRST then
  return { rarest, false }
end
local below, steps, count = ARGV[2], tonumber(ARGV[3]), 0
while steps > 0 do
  local size = math.min(steps, 500)
  local places, fitting = next_entries(below, size)
  count = count + #fitting
  if #places < size then
    return { count, false }
  end
  steps, below = steps - size, places[size]
end
return { count, below }
