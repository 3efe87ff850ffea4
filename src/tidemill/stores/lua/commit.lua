-- Apply commits in order, each all or nothing.
-- include jobs
-- include rows
--
-- KEYS[13] streams  zset by bytes: the names of streams that have records
-- KEYS[14…]         two of each stream: its records (list) and its rest (hash: `j` and key → job id, `s` snapshot,
--                   `v` its version)
--
-- ARGV[7] number of streams, ARGV[8] number of commits, then the name of each stream, then of each commit
--   a header: stream, expected version (-1: any), number of records, version of the snapshot (-1: none), number of
--             acks, holds, drops, withdrawals, jobs, keys to keep, rows
--   records; snapshot; (key, token) of acks and holds; keys of drops and withdrawals; (key, ready time, fixed part) of
--   jobs; keys to keep, lease in ms and owner if there are any; (field, place, marks, rest) of rows
--
-- Answers the time, whether room under a cap was made, and of each commit 0, version, number of leases, (number of the
-- job, token)…; or 1, version, number of lost leases, their numbers…; or 2, version, 0.

if answered then
  return answered
end

local STREAMS = KEYS[13]
local streams, written, created = {}, {}, {}
local at = 8
for number = 1, tonumber(ARGV[7]) do
  at = at + 1
  streams[number] = { name = ARGV[at], records = KEYS[12 + 2 * number], rest = KEYS[13 + 2 * number], ids = {} }
end

local function id_of(stream, key)
  local id = stream.ids[key]
  if id == nil then
    id = tonumber(call('HGET', stream.rest, 'j' .. key) or nil) or false
    stream.ids[key] = id
  end
  return id
end

local function version_of(stream)
  if not stream.version then
    stream.version = call('LLEN', stream.records)
  end
  return stream.version
end

local answer = { now, 0 }
local function say(value)
  answer[#answer + 1] = value
end

local function next_at(count)
  local from = at + 1
  at = at + count
  return from
end

-- Whether a job of a stream is not leased, and no holder of it is presumed dead; one that does not exist is idle.
local function is_idle(stream, key)
  local id = id_of(stream, key)
  local job = id and get_header(id)
  return not job or (job.token == 0 and job.expired == 0)
end

-- Remove a job of a stream, unless it is spared because it is leased; its name is among the `gone`.
local function settle(stream, gone, key, spare)
  local id = id_of(stream, key)
  local job = id and get_header(id)
  if job and not (spare and job.token > 0) then
    remove(job)
    stream.ids[key] = false
    gone[#gone + 1] = 'j' .. key
  end
end

for _ = 1, tonumber(ARGV[8]) do
  local number, expected, records, snapshot, acks, holds, drops, withdrawals, inserts, keeps, rows =
    unpack_('>I4i8I4i8I4I4I4I4I4I4I4', ARGV[next_at(1)])
  local stream = streams[number]
  local records_at = next_at(records)
  local snapshot_at = next_at(snapshot >= 0 and 1 or 0)
  local leases_at = next_at(2 * (acks + holds))
  local drops_at = next_at(drops)
  local withdrawals_at = next_at(withdrawals)
  local jobs_at = next_at(3 * inserts)
  local keeps_at = next_at(keeps)
  local lease_at = next_at(keeps > 0 and 2 or 0)
  local rows_at = next_at(4 * rows)

  local lost = {}
  for index = 1, acks + holds do
    local from = leases_at + 2 * (index - 1)
    local key, token = ARGV[from], tonumber(ARGV[from + 1])
    local kept
    if token == 0 and index > acks then
      kept = is_idle(stream, key)
    else
      kept = held(id_of(stream, key), token)
    end
    if not kept then
      lost[#lost + 1] = index
    end
  end
  local version = version_of(stream)
  if #lost > 0 then
    say(1) say(version) say(#lost)
    for _, index in ipairs(lost) do
      say(index)
    end
  elseif expected >= 0 and expected ~= version then
    say(2) say(version) say(0)
  else
    if records > 0 then
      for from = records_at, records_at + records - 1, 1000 do
        call('RPUSH', stream.records, unpack(ARGV, from, math.min(from + 999, records_at + records - 1)))
      end
      if version == 0 then
        created[stream.name] = true
      end
      version = version + records
      stream.version = version
      written[#written + 1] = stream.name
    end
    if snapshot >= 0 and tonumber(call('HGET', stream.rest, 'v') or -1) < snapshot then
      call('HSET', stream.rest, 's', ARGV[snapshot_at], 'v', snapshot)
    end
    local gone = {}
    for index = 1, acks do
      settle(stream, gone, ARGV[leases_at + 2 * (index - 1)])
    end
    for index = drops_at, drops_at + drops - 1 do
      settle(stream, gone, ARGV[index])
    end
    for index = withdrawals_at, withdrawals_at + withdrawals - 1 do
      settle(stream, gone, ARGV[index], true)
    end
    in_parts('HDEL', stream.rest, gone)
    local inserted, fresh = {}, {}
    for index = 1, inserts do
      local from = jobs_at + 3 * (index - 1)
      local key = ARGV[from]
      if not stream.ids[key] and call('HSETNX', stream.rest, 'j' .. key, order + 1) == 1 then
        order = order + 1
        local job = { id = order, token = 0, expires = 0, expired = 0, owner = '', changed = true, number = index }
        job.ready = math.max(tonumber(ARGV[from + 1]), now)
        job.fixed = ARGV[from + 2]
        jobs[order], stream.ids[key] = job, order
        fresh[key], inserted[#inserted + 1] = job, job
      end
    end
    for index = 1, rows do
      local from = rows_at + 4 * (index - 1)
      write_row(ARGV[from], ARGV[from + 1], ARGV[from + 2], ARGV[from + 3])
    end
    local kept = {}
    for index = keeps_at, keeps_at + keeps - 1 do
      local job = fresh[ARGV[index]]
      if job and job.ready <= now and not job.state then
        lease(job, tonumber(ARGV[lease_at]), ARGV[lease_at + 1])
        kept[#kept + 1] = job
      end
    end
    for _, job in ipairs(inserted) do
      if not job.state then
        put(job)
      end
    end
    say(0) say(version) say(#kept)
    for _, job in ipairs(kept) do
      say(job.number) say(job.token)
    end
  end
end

answer[2] = freed and 1 or 0
flush_members(STREAMS, created)
flush_rows()
flush(answer)
if #written > 0 then
  tell(table.concat(written))
end
return answer
