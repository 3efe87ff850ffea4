-- Remove a stream with its records, snapshot and jobs, and write rows.
-- include jobs
-- include rows
--
-- KEYS[13] streams (see commit.lua)   KEYS[14] records   KEYS[15] rest
-- ARGV[7] expected version (-1: any)  ARGV[8] name of the stream, then (field, place, marks, rest) of rows
--
-- Answers 1, or 0 if the version is another one.

if answered then
  return answered[1]
end
local expected, done = tonumber(ARGV[7]), 0
if expected < 0 or call('LLEN', KEYS[14]) == expected then
  done = 1
  for _, key in ipairs(call('HKEYS', KEYS[15])) do
    if sub(key, 1, 1) == 'j' then
      local job = get(tonumber(call('HGET', KEYS[15], key)))
      if job then
        remove(job)
      end
    end
  end
  call('DEL', KEYS[14], KEYS[15])
  call('ZREM', KEYS[13], ARGV[8])
  for from = 9, #ARGV, 4 do
    write_row(ARGV[from], ARGV[from + 1], ARGV[from + 2], ARGV[from + 3])
  end
  flush_rows()
end
flush({ done })
return done
