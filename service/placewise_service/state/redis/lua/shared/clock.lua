-- shared/clock.lua: the server's clock, the only one that reservations and memories expire by.
-- Gives   time, now_s (seconds since the epoch)
local time = redis.call('TIME')
local now_s = tonumber(time[1]) + tonumber(time[2]) / 1e6
