-- shared/rows.lua: rows that scripts compute, with their sums beside them; put after shared/event.lua. Needs
-- `row_sums_key` to be set before use. sums.py checks the sums.
-- A row that has a sum spells the number of its values in four bytes. A replica of 0.1.0 reads it so, rewrites the row
-- without a sum, and spells the number in the first byte: such a row is accepted as it is.
-- Gives   row_of(key, kind, name), save_row(key, kind, name, row, is_map), drop_row(key, kind, name); `kind` is the
--         key's last part
-- Cost    O(1) each
local row_sums_key

local function sum_of(kind, name, packed)
  return string.sub(redis.sha1hex(kind .. ' ' .. #name .. ' ' .. name .. packed), 1, 16)
end

-- Nil also for a row whose bytes are not those that were written: nothing is added to it.
local function row_of(key, kind, name)
  local packed = redis.call('HGET', key, name)
  if not packed then
    return nil
  end
  local head = string.byte(packed)
  local is_summed = head == 0xdd or head == 0xdf
  if is_summed and redis.call('HGET', row_sums_key, kind .. ':' .. name) ~= sum_of(kind, name, packed) then
    return nil
  end
  return cmsgpack.unpack(packed)
end

-- The same msgpack array or map, with its number of values in four bytes. `is_map`: a row with names, as Redis would pack an
-- empty table as an array.
local function spelt_out(packed, is_map)
  local head = string.byte(packed)
  if head == 0xde then
    return string.char(0xdf, 0, 0) .. string.sub(packed, 2)
  end
  return string.char(is_map and 0xdf or 0xdd, 0, 0, 0, head % 16) .. string.sub(packed, 2)
end

local function save_row(key, kind, name, row, is_map)
  local packed = spelt_out(cmsgpack.pack(row), is_map)
  redis.call('HSET', key, name, packed)
  redis.call('HSET', row_sums_key, kind .. ':' .. name, sum_of(kind, name, packed))
end

local function drop_row(key, kind, name)
  redis.call('HDEL', row_sums_key, kind .. ':' .. name)
  return redis.call('HDEL', key, name)
end
