-- Release jobs; leases that are lost are passed over.
-- include jobs
--
-- KEYS[11…] the rest of each stream (see commit.lua)
-- ARGV[7] delay in ms, then of each lease: number of the stream, key, token

for from = 8, #ARGV, 3 do
  local id = call('HGET', KEYS[10 + tonumber(ARGV[from])], 'j' .. ARGV[from + 1])
  local job = held(id and tonumber(id), tonumber(ARGV[from + 2]))
  if job then
    displace(job)
    job.token, job.owner, job.changed = 0, '', true
    if tonumber(ARGV[7]) > 0 then
      job.ready = now + tonumber(ARGV[7])
    end
    put(job)
  end
end
flush()
return now
