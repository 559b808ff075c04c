-- copy_events.lua: copies the events that nobody has copied yet to the log of views, as one entry. Any replica may
-- call it, any number at once: each event is copied once. Events that were trimmed before leave a gap.
-- Includes: ring.
-- KEYS    1 meta, 2 events, 3 views, 4 views_exported, 5 views_bytes, 6 views_drops,
--         7 views_copied
-- ARGV    1 most entries to keep, 2 most bytes of entries to keep, 3 most events, 4 bytes after which the entry ends
-- Returns {1 if there may be more, the number of entries dropped before they were exported}
-- Cost    O(bytes copied + entries dropped)
local found = redis.call('HMGET', KEYS[1], 'life', 'last')
if not found[1] then
  return {0, 0}
end
local copied = redis.call('HMGET', KEYS[7], 'life', 'last')
local last = copied[1] == found[1] and copied[2] or '0'
if last == found[2] then
  return {0, 0}
end

local function big_endian(n)
  return string.char(math.floor(n / 16777216) % 256, math.floor(n / 65536) % 256, math.floor(n / 256) % 256, n % 256)
end

-- msgpack: \198 binary, \219 text, \221 array, each with a length of four bytes; \148 and \149 arrays of 4 and 5.
local function binary(text)
  return '\198' .. big_endian(#text) .. text
end

local most, room = tonumber(ARGV[3]), tonumber(ARGV[4])
local rows, first = {}, nil
for _, entry in ipairs(redis.call('XRANGE', KEYS[2], '(' .. last, '+', 'COUNT', most)) do
  if room < 0 then
    break
  end
  local fields = {}
  for i = 1, #entry[2], 2 do
    fields[entry[2][i]] = entry[2][i + 1]
  end
  if fields['life'] == found[1] then
    local sum = fields['sum'] or ''
    rows[#rows + 1] = '\149' .. binary(entry[1]) .. binary(fields['kind']) .. binary(fields['body'])
      .. binary(fields['args']) .. binary(sum)
    room = room - #fields['body'] - #fields['args']
    first = first or entry[1]
  end
  last = entry[1]
end
redis.call('HSET', KEYS[7], 'life', found[1], 'last', last)
if #rows == 0 then
  return {0, 0}
end
local id = found[1] .. ':' .. first
local record = '\148\1\166events\219' .. big_endian(#id) .. id .. '\221' .. big_endian(#rows) .. table.concat(rows)
local lost = push(KEYS[3], KEYS[4], KEYS[5], KEYS[6], tonumber(ARGV[1]), tonumber(ARGV[2]), {record})
return {last == found[2] and 0 or 1, lost}
