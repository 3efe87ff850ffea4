-- Writing index rows.
--
-- KEYS[11] rows   hash: tenant, kind, key → marks, sort and what only clients read
-- KEYS[12] terms  zset by bytes: mark (the hash of tenant, kind and term), sort, key

local ROWS, TERMS = KEYS[11], KEYS[12]

-- `place` is sort and key, `marks` are 8 bytes each; without marks the row is removed.
local function write_row(field, place, marks, rest)
  local old = call('HGET', ROWS, field)
  local old_marks, old_place = '', nil
  if old then
    local count = unpack_('>H', old)
    old_marks = sub(old, 3, 2 + 8 * count)
    old_place = sub(old, 3 + 8 * count, 10 + 8 * count) .. sub(place, 9)
  end
  if marks == '' then
    if not old then
      return
    end
    call('HDEL', ROWS, field)
  else
    call('HSET', ROWS, field, pack_('>H', #marks / 8) .. marks .. sub(place, 1, 8) .. rest)
    if old_marks == marks and old_place == place then
      return
    end
  end
  local had, added, gone = {}, {}, {}
  for at = 1, #old_marks, 8 do
    had[sub(old_marks, at, at + 7)] = true
  end
  for at = 1, #marks, 8 do
    local mark = sub(marks, at, at + 7)
    if old_place == place and had[mark] then
      had[mark] = nil
    else
      added[#added + 1], added[#added + 2] = 0, mark .. place
    end
  end
  for mark in pairs(had) do
    gone[#gone + 1] = mark .. old_place
  end
  in_parts('ZREM', TERMS, gone)
  in_parts('ZADD', TERMS, added)
end
