-- release.lua: releases unconfirmed reservations. Includes: clock, event, holdings, lapsed.
-- KEYS    1 meta, 2 events, 3 used, 4 jobs, 5 holds, 6 expiring, 7 reservations, 8 lapsed, 9 lapsed_times
-- ARGV    1 retain_s, then reservation ids
-- Returns {epoch, version, released, unknown, events}; an event is {version, kind, body, args}
-- Cost    O(tasks released)
used_key, lapsed_key, lapsed_times_key = KEYS[3], KEYS[8], KEYS[9]
local ended, released, unknown = {}, 0, 0
for i = 2, #ARGV do
  local packed = redis.call('HGET', KEYS[7], ARGV[i])
  if packed then
    for _, job in ipairs(cmsgpack.unpack(packed)) do
      give_back_all(cmsgpack.unpack(redis.call('HGET', KEYS[5], job))[2], job)
      redis.call('HDEL', KEYS[4], job)
      redis.call('HDEL', KEYS[5], job)
      redis.call('ZREM', KEYS[6], job)
      drop_lapsed(job)
      ended[#ended + 1] = job
    end
    redis.call('HDEL', KEYS[7], ARGV[i])
    released = released + 1
  else
    unknown = unknown + 1
  end
end
save_used()
local events = {}
if #ended > 0 then
  events[1] = append('ended', cmsgpack.pack(ended), '')
end
return {epoch or '', whole(version), released, unknown, events}
