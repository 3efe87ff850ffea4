-- Walking down the entries of the rarest mark; read before the scripts that look for rows. Those say before it where
-- the entries are (TERMS, see rows.lua) and which argument is the first mark (FIRST).

local TOP = string.rep('\255', 9) -- Above every sort and key.
local along, rarest
for index = FIRST, #ARGV do
  local size = redis.call('ZLEXCOUNT', TERMS, '[' .. ARGV[index], '(' .. ARGV[index] .. TOP)
  if not rarest or size < rarest then
    along, rarest = ARGV[index], size
  end
end

-- The places of the next entries, and the numbers of those that have all other marks, too.
local function next_entries(below, size)
  local to = '(' .. along .. (below == '' and TOP or below)
  local places, fitting = {}, {}
  for number, member in ipairs(redis.call('ZREVRANGEBYLEX', TERMS, to, '[' .. along, 'LIMIT', 0, size)) do
    places[number], fitting[number] = string.sub(member, 9), number
  end
  for index = FIRST, #ARGV do
    local mark = ARGV[index]
    if mark ~= along and #fitting > 0 then
      local asked, left = {}, {}
      for at, number in ipairs(fitting) do
        asked[at] = mark .. places[number]
      end
      for at, score in ipairs(redis.call('ZMSCORE', TERMS, unpack(asked))) do
        left[#left + 1] = score and fitting[at] or nil
      end
      fitting = left
    end
  end
  return places, fitting
end
