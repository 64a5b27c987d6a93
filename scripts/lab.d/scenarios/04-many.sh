# two targets x two LUNs x two sessions on the shared per-core completion queues, all loaded at once
cat >/tmp/many.yaml <<Y
rdma: verbs
portals:
  - address: $ADDR:$PORT
targets:
  - name: $IQN
    luns:
      - store: ram:96MiB
      - store: ram:96MiB
  - name: ${IQN}b
    luns:
      - store: ram:96MiB
      - store: ram:96MiB
Y
start_iserd_config /tmp/many.yaml
for t in $IQN ${IQN}b; do
	iscsiadm -m node -o new -T $t -p $ADDR:$PORT,1 -I lab-iser >/dev/null
	# Two sessions to each target.
	iscsiadm -m node -T $t -p $ADDR:$PORT -I lab-iser --op update -n node.session.nr_sessions -v 2
	iscsiadm -m node -T $t -p $ADDR:$PORT -I lab-iser --login >"$OUT/login.log" 2>&1 || fail "login to $t: $(tail -1 "$OUT/login.log")"
done
n=$(iscsiadm -m session | wc -l); [ "$n" = 4 ] || fail "$n sessions, want 4"
all_disks() { [ "$( { disks $IQN; disks ${IQN}b; } | wc -l)" = 8 ]; }
wait_for 20 "eight disks" all_disks
i=0 pids=
while read -r lun d; do
	# The two sessions of a LUN share its bytes: each works on a half of its own.
	fio_verify "$d" --size=24m --offset=$(( (i % 2) * 48 ))m --iodepth=16 & pids="$pids $!"
	i=$((i + 1))
done < <({ disks $IQN; disks ${IQN}b; } | sort)
step "$i fio jobs"
for p in $pids; do wait "$p" || fail "fio on one of the disks"; done
iscsiadm -m node -u >/dev/null
