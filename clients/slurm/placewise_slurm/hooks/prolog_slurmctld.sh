#!/bin/bash
# Placewise for Slurm, PrologSlurmctld: says that a job starts. One datagram; a prolog that fails would requeue the job,
# so this one never does.
{ printf 'start %s' "$SLURM_JOB_ID" >/dev/udp/@POKE_HOST@/@POKE_PORT@; } 2>/dev/null
exit 0
