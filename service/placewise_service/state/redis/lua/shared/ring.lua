-- shared/ring.lua: the bounded logs. `most` entries and `most_bytes` of them are kept; the oldest fall off.
-- Gives   push(ring_key, exported_key, bytes_key, drops_key, most, most_bytes, records): how many fell off unexported,
--         which drops_key counts
-- Cost    O(records appended + entries dropped)
local function parts(id)
  local ms, seq = string.match(id, '^(%d+)%-?(%d*)$')
  return tonumber(ms), tonumber(seq ~= '' and seq or '0')
end

local function push(ring_key, exported_key, bytes_key, drops_key, most, most_bytes, records)
  local added = 0
  for _, record in ipairs(records) do
    redis.call('XADD', ring_key, '*', 'r', record)
    added = added + #record
  end
  local count = redis.call('XLEN', ring_key)
  local bytes = tonumber(redis.call('GET', bytes_key) or '0') + added
  local exported_ms, exported_seq = parts(redis.call('GET', exported_key) or '0')
  local lost, first = 0, '-'

  local function is_too_much()
    return count > most or (bytes > most_bytes and count > 1)
  end

  local read = 1  -- doubled, as one entry may have a quarter of a MiB: to read many more than fall off stops Redis
  while is_too_much() do
    for _, entry in ipairs(redis.call('XRANGE', ring_key, first, '+', 'COUNT', read)) do
      if not is_too_much() then
        break
      end
      local ms, seq = parts(entry[1])
      if ms > exported_ms or (ms == exported_ms and seq > exported_seq) then
        lost = lost + 1
      end
      count, bytes = count - 1, bytes - #entry[2][2]
      first = string.format('%.0f-%.0f', ms, seq + 1)
    end
    read = math.min(2 * read, 64)
  end
  if first ~= '-' then
    redis.call('XTRIM', ring_key, 'MINID', first)
  end
  redis.call('SET', bytes_key, string.format('%.0f', bytes))
  if lost > 0 then
    redis.call('INCRBY', drops_key, lost)
  end
  return lost
end
