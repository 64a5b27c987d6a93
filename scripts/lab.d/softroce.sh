# RoCEv2 in user space against the kernel's soft-RoCE: the other end of the veth pair goes into a network namespace of its own.
# Sourced by lib.sh.
SR_NS=labsr SR_ADDR=192.168.77.2 SR_ADDR6=fd00:77::2

# softroce_up: a namespace with addresses, where no RDMA device is.
softroce_up() {
	ip netns add $SR_NS && ip link set labv1 netns $SR_NS || fail "cannot make the namespace $SR_NS"
	ip -n $SR_NS link set lo up
	ip -n $SR_NS addr add $SR_ADDR/24 dev labv1; ip -n $SR_NS -6 addr add $SR_ADDR6/64 dev labv1 nodad
	ip -n $SR_NS link set labv1 mtu 4200 up
	rdma_up
}
in_ns() { ip netns exec $SR_NS "$@"; }

# start_softroce ARGS...: iserd in the namespace, on RoCEv2 in user space.
start_softroce() {
	ISERD_IN="ip netns exec $SR_NS" ISERD_RDMA=softroce start_iserd --listen $SR_ADDR:$PORT --listen "[$SR_ADDR6]:$PORT" "$@"
	grep -q 'softroce' "$OUT/iserd.log" || fail "the daemon does not say that it runs on softroce"
}

# netem WORDS...: the same for both directions; without words, none.
netem() {
	tc qdisc del dev labv0 root 2>/dev/null; ip netns exec $SR_NS tc qdisc del dev labv1 root 2>/dev/null
	[ $# -gt 0 ] || return 0
	tc qdisc add dev labv0 root netem "$@" && ip netns exec $SR_NS tc qdisc add dev labv1 root netem "$@" || fail "tc takes no netem $*"
}
