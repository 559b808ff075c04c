-- shared/event.lua: put before every script that moves a cluster's version.
-- KEYS    1 meta, 2 events
-- ARGV    1 least seconds to keep events
-- Needs   shared/clock.lua
-- Gives   exists, epoch, version, clock_s (the cluster's time: the one its host stated, else now_s), create(new_epoch), array_header(n), append(kind, body, args)
-- Cost    O(1) per event, and now and then the trimming of old events
local meta = redis.call('HMGET', KEYS[1], 'schema', 'life', 'version', 'mark_s', 'mark', 'host_s')
if meta[1] and meta[1] ~= '1' then
  return redis.error_reply('PWSCHEMA ' .. meta[1])
end
local exists = meta[2] and true or false
local epoch = meta[2]
local version = tonumber(meta[3] or '0')
local mark_s = tonumber(meta[4] or '0')
local mark = tonumber(meta[5] or '0')
local clock_s = tonumber(meta[6] or now_s)

local function whole(number)
  return string.format('%.0f', number)
end

-- Begins an epoch of the cluster. Records without their meta were not left by this store.
local function create(new_epoch)
  for i = 3, #KEYS do
    if redis.call('EXISTS', KEYS[i]) == 1 then
      return false
    end
  end
  redis.call('DEL', KEYS[2])
  redis.call('HSET', KEYS[1], 'schema', '1', 'life', new_epoch, 'version', '0', 'mark_s', whole(now_s), 'mark', '0')
  epoch, version, mark_s, mark = new_epoch, 0, now_s, 0
  return true
end

-- The msgpack header of an array of n.
local function array_header(n)
  if n < 16 then
    return string.char(0x90 + n)
  end
  return string.char(0xdd, math.floor(n / 16777216) % 256, math.floor(n / 65536) % 256, math.floor(n / 256) % 256, n % 256)
end

-- One event with the next version. Its id is version-microseconds: a position names one event of one history, so a
-- reader notices when a server that lost its last writes counts the same versions again. sums.py checks the sum.
local function append(kind, body, args)
  version = version + 1
  local id = string.format('%.0f-%s%06d', version, time[1], tonumber(time[2]))
  local sum = string.sub(redis.sha1hex(id .. ' ' .. epoch .. ' ' .. kind .. ' ' .. #body .. ' ' .. body .. args), 1, 16)
  redis.call('XADD', KEYS[2], id, 'life', epoch, 'kind', kind, 'body', body, 'args', args, 'sum', sum)
  local retain_s = tonumber(ARGV[1])
  if now_s - mark_s >= retain_s then
    redis.call('XTRIM', KEYS[2], 'MINID', whole(mark))
    mark_s, mark = now_s, version
    redis.call('HSET', KEYS[1], 'version', whole(version), 'last', id, 'mark_s', whole(now_s), 'mark', whole(mark))
  else
    redis.call('HSET', KEYS[1], 'version', whole(version), 'last', id)
  end
  return {whole(version), kind, body, args}
end
