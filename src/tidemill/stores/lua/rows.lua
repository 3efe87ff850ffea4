-- Writing index rows.
--
-- KEYS[11] rows   hash: tenant, kind, key → marks, sort and what only clients read
-- KEYS[12] terms  zset by bytes: mark (the hash of tenant, kind and term), sort, key

local ROWS, TERMS = KEYS[11], KEYS[12]
local rows, terms = {}, {}

-- `place` is sort and key, `marks` are 8 bytes each; without marks the row is removed.
local function write_row(field, place, marks, rest)
  local old = rows[field]
  if old == nil then
    old = call('HGET', ROWS, field)
  end
  local old_marks, old_place = '', nil
  if old then
    local count = unpack_('>H', old)
    old_marks = sub(old, 3, 2 + 8 * count)
    old_place = sub(old, 3 + 8 * count, 10 + 8 * count) .. sub(place, 9)
  end
  rows[field] = marks ~= '' and pack_('>H', #marks / 8) .. marks .. sub(place, 1, 8) .. rest
  if old_marks == marks and old_place == place then
    return
  end
  local had = {}
  for at = 1, #old_marks, 8 do
    had[sub(old_marks, at, at + 7) .. old_place] = true
  end
  for at = 1, #marks, 8 do
    local member = sub(marks, at, at + 7) .. place
    if had[member] then
      had[member] = nil
    else
      terms[member] = true
    end
  end
  for member in pairs(had) do
    terms[member] = false
  end
end

-- Few commands for the rows of all commits.
local function flush_rows()
  local added, gone = {}, {}
  for field, stored in pairs(rows) do
    if stored then
      added[#added + 1], added[#added + 2] = field, stored
    else
      gone[#gone + 1] = field
    end
  end
  in_parts('HDEL', ROWS, gone)
  in_parts('HSET', ROWS, added)
  flush_members(TERMS, terms)
end
