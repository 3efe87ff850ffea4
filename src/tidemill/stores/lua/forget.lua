-- Remove a stream with its records, snapshot and jobs, and write rows.
-- include jobs
-- include session
-- include rows
--
-- KEYS[14] streams (see commit.lua)   KEYS[15] records   KEYS[16] rest
-- ARGV[6] expected version (-1: any)  ARGV[7] name of the stream, then (field, place, marks, rest) of rows
--
-- Answers 1, or 0 if the version is another one.

if answered then
  return answered[1]
end
local expected, done = tonumber(ARGV[6]), 0
if expected < 0 or call('LLEN', KEYS[15]) == expected then
  done = 1
  for _, key in ipairs(call('HKEYS', KEYS[16])) do
    if sub(key, 1, 1) == 'j' then
      local job = get(tonumber(call('HGET', KEYS[16], key)))
      if job then
        remove(job)
      end
    end
  end
  call('DEL', KEYS[15], KEYS[16])
  call('ZREM', KEYS[14], ARGV[7])
  for from = 8, #ARGV, 4 do
    write_row(ARGV[from], ARGV[from + 1], ARGV[from + 2], ARGV[from + 3])
  end
  flush()
end
remember({ done })
return done
