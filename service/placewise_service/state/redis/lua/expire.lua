-- expire.lua: releases expired reservations, by the cluster's clock, and keeps their
-- records for hosts that start late. First moves that clock, if the host states a later time. Includes: clock, event, holdings, lapsed.
-- KEYS    1 meta, 2 events, 3 used, 4 jobs, 5 holds, 6 expiring, 7 reservations, 8 lapsed, 9 lapsed_times
-- ARGV    1 retain_s, 2 most jobs to release in one step (call again for the rest), 3 seconds that their records
--         are kept, 4 most bytes of records, 5 the host's time or "", 6 the same as msgpack
-- Returns {epoch, version, released, 0, events}; an event is {version, kind, body, args}
-- Cost    O(tasks released)
used_key, lapsed_key, lapsed_times_key = KEYS[3], KEYS[8], KEYS[9]
local events = {}
if ARGV[5] ~= '' and meta[6] and tonumber(ARGV[5]) > clock_s then
  clock_s = tonumber(ARGV[5])
  redis.call('HSET', KEYS[1], 'host_s', ARGV[5])
  events[1] = append('clock', ARGV[6], '')
end
local late = redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', string.format('%.6f', clock_s), 'LIMIT', 0, ARGV[2])
for _, job in ipairs(late) do
  local held = cmsgpack.unpack(redis.call('HGET', KEYS[5], job))
  give_back_all(held[2], job)
  leave_reservation(KEYS[7], held[1], job)
  keep_lapsed(job, held[1], redis.call('HGET', KEYS[4], job), held[2], tonumber(ARGV[3]))
  redis.call('HDEL', KEYS[4], job)
  redis.call('HDEL', KEYS[5], job)
  redis.call('ZREM', KEYS[6], job)
end
save_used()
if #late > 0 then
  trim_lapsed(tonumber(ARGV[3]), tonumber(ARGV[4]))
  events[#events + 1] = append('expired', cmsgpack.pack(late), '')
end
return {epoch or '', whole(version), #late, 0, events}
