-- A call that is executed once, however often it is sent.
--
-- KEYS[11] session  string: the number of the last call and its answer
-- ARGV[5]  the number of this call, which only grows

local SESSION, batch = KEYS[11], tonumber(ARGV[5])
local SESSION_MS = 3600000
local answered
do
  local stored = call('GET', SESSION)
  if stored then
    local last = unpack_('>I8', stored)
    if last > batch then
      return redis.error_reply('STALE a later call has come before')
    elseif last == batch then
      answered = cmsgpack.unpack(sub(stored, 9))
    end
  end
end

local function remember(answer)
  call('SET', SESSION, pack_('>I8', batch) .. cmsgpack.pack(answer), 'PX', SESSION_MS)
end
