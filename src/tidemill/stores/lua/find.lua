-- Rows that have all marks, newest first: along the rarest mark, as far as one call may walk.
--
-- KEYS[1] meta   KEYS[2] rows   KEYS[3] terms (see rows.lua)
-- ARGV[1] id of the store   ARGV[2] tenant and kind   ARGV[3] the place to begin below, or empty
-- ARGV[4] how many rows     ARGV[5] how many entries to walk, then the marks
--
-- Answers the last place that was visited (nil: the end was reached), then place and row of each.

if redis.call('HGET', KEYS[1], 'store') ~= ARGV[1] then
  return redis.error_reply('EMPTIED the store is gone')
end
local TERMS, FIRST = KEYS[3], 6
-- include walk
local below, wanted, steps = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local answer, found, size = { false }, 0, math.min(wanted + 1, 500)
while steps > 0 do
  size = math.min(steps, size)
  local places, fitting = next_entries(below, size)
  local from = 1
  while from <= #fitting do
    local fields = {}
    for at = from, math.min(from + wanted - found - 1, from + 999, #fitting) do
      fields[#fields + 1] = ARGV[2] .. string.sub(places[fitting[at]], 9)
    end
    for at, row in ipairs(redis.call('HMGET', KEYS[2], unpack(fields))) do
      if row then
        found = found + 1
        answer[1] = places[fitting[from + at - 1]]
        answer[#answer + 1], answer[#answer + 2] = answer[1], row
      end
    end
    if found == wanted then
      return answer
    end
    from = from + #fields
  end
  if #places < size then
    answer[1] = false
    return answer
  end
  steps, below = steps - size, places[size]
  answer[1], size = below, 500 -- Many entries are asked for at once where few fit.
end
return answer
