package iserclient_test

import (
	"bytes"
	"sync/atomic"
	"testing"
	"time"

	"iserd/backstore"
	"iserd/internal/iserclient"
	"iserd/internal/serial"
	"iserd/iscsi/pdu"
	"iserd/iser"
	"iserd/rdma"
	"iserd/rdma/rdmatest"
)

// The whole target under what devices, links, peers and stores do to it. That nothing is left open, registered or in use
// is checked at the end of each test by the rig.

var slow = iserclient.LUN(2)

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// atRest waits until the target has no connection and every buffer is back.
func (r *rig) atRest() {
	r.t.Helper()
	eventually(r.t.(*testing.T), "all buffers and connections back", func() bool {
		s := r.total()
		return s.Connections == 0 && s.QPs == 0 && s.RecvPosted == 0 && s.SendOutstanding == 0 && s.CQReserved == 0
	})
}

// total is the sum over all shards.
func (r *rig) total() iser.ShardStats {
	s := r.srv.Stats()
	return s.Total()
}

// works says that the target serves a new session.
func (r *rig) works() {
	r.t.Helper()
	c := r.open(iserclient.Options{})
	data := bytes.Repeat([]byte{0x5A}, 65536)
	r.good(c, &iserclient.Command{CDB: iserclient.Write10(4000, 128), Out: data})
	if res := r.good(c, &iserclient.Command{CDB: iserclient.Read10(4000, 128), In: len(data)}); !bytes.Equal(res.Data, data) {
		r.t.Error("other data")
	}
	check(r.t, c.Logout())
}

// burst starts reads and writes on a logical unit without waiting for them.
func burst(t *testing.T, c *iserclient.Conn, lun uint64, n int) []*iserclient.Task {
	t.Helper()
	var tasks []*iserclient.Task
	for i := range n {
		cmd := &iserclient.Command{LUN: lun, CDB: iserclient.Read10(uint32(i*64), 64), In: 32768}
		if i%2 == 0 {
			cmd = &iserclient.Command{LUN: lun, CDB: iserclient.Write10(uint32(i*64), 64), Out: make([]byte, 32768), ImmediateData: -1}
		}
		task, err := c.Start(cmd)
		check(t, err)
		tasks = append(tasks, task)
	}
	return tasks
}

// TestLinkDropAmidTransfer: the link dies with RDMA READs, WRITEs and responses under way (known from tgt, whose tasks
// leaked when the connection ended with I/O in flight).
func TestLinkDropAmidTransfer(t *testing.T) {
	for _, lun := range []uint64{0, slow} {
		r := newRig(t)
		c := r.open(iserclient.Options{})
		r.fabric.SetFaults(rdmatest.Faults{ReadTime: func(rdmatest.WorkInfo) time.Duration { return rdmatest.Held }})
		burst(t, c, lun, 16)
		_ = c.Idle(2 * time.Millisecond)
		r.fabric.SetLink(false)
		r.fabric.ReleaseReads()
		_ = c.Idle(50 * time.Millisecond)
		check(t, c.Close())
		r.fabric.SetFaults(rdmatest.Faults{})
		r.fabric.SetLink(true)
		r.atRest()
		r.works()
	}
}

// TestPeerDiesWithReadsHeld: the initiator disconnects while the target reads from it.
func TestPeerDiesWithReadsHeld(t *testing.T) {
	r := newRig(t)
	for range 5 {
		c := r.open(iserclient.Options{})
		r.fabric.SetFaults(rdmatest.Faults{ReadTime: func(rdmatest.WorkInfo) time.Duration { return rdmatest.Held }})
		burst(t, c, 0, 12)
		check(t, c.Disconnect())
		check(t, c.Close())
		r.fabric.SetFaults(rdmatest.Faults{})
		r.fabric.ReleaseReads()
		r.atRest()
	}
	r.works()
}

// TestFlushAfterTimewait: the flushed completions come long after DISCONNECTED and TIMEWAIT_EXIT.
func TestFlushAfterTimewait(t *testing.T) {
	r := newRig(t)
	c := r.open(iserclient.Options{})
	var hold atomic.Bool
	r.fabric.SetFaults(rdmatest.Faults{Delay: func(w rdmatest.WorkInfo) time.Duration {
		if hold.Load() {
			return rdmatest.Held
		}
		return 0
	}})
	burst(t, c, slow, 8)
	hold.Store(true)
	check(t, c.Disconnect())
	check(t, c.AwaitClose())
	time.Sleep(20 * time.Millisecond) // TIMEWAIT_EXIT has come
	hold.Store(false)
	r.fabric.ReleaseCompletions()
	check(t, c.Close())
	r.atRest()
	r.fabric.SetFaults(rdmatest.Faults{})
	r.works()
}

// TestLoginBeforeEstablished: the login request overtakes the target's ESTABLISHED event, which COMM_EST makes up for,
// or which comes late, or never.
func TestLoginBeforeEstablished(t *testing.T) {
	for name, action := range map[string]rdmatest.EventAction{
		"late":  {Delay: 20 * time.Millisecond},
		"never": {Drop: true},
		"twice": {Again: 5 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.fabric.SetFaults(rdmatest.Faults{Event: func(e rdmatest.EventInfo) rdmatest.EventAction {
				if e.Passive && e.Type == rdma.EventEstablished {
					return action
				}
				return rdmatest.EventAction{}
			}})
			r.works()
		})
	}
}

// TestDisconnectedTwice: CM events come twice, and in an order that nobody planned.
func TestDisconnectedTwice(t *testing.T) {
	r := newRig(t)
	r.fabric.SetFaults(rdmatest.Faults{Event: func(e rdmatest.EventInfo) rdmatest.EventAction {
		if e.Passive && e.Type == rdma.EventDisconnected {
			return rdmatest.EventAction{Delay: time.Duration(e.N%3) * time.Millisecond, Again: time.Millisecond}
		}
		return rdmatest.EventAction{}
	}})
	for range 8 {
		c := r.open(iserclient.Options{})
		burst(t, c, slow, 4)
		check(t, c.Close())
	}
	r.atRest()
	r.works()
}

// TestDeviceComesAndGoes: the device is unplugged under load and comes back.
func TestDeviceComesAndGoes(t *testing.T) {
	r := newRig(t)
	for range 3 {
		c := r.open(iserclient.Options{})
		burst(t, c, slow, 8)
		dev := r.target.Device("mem0")
		dev.Remove()
		_ = c.Idle(5 * time.Millisecond)
		check(t, c.Close())
		eventually(t, "connections gone", func() bool { return r.total().Connections == 0 })
		dev.Return()
		eventually(t, "served again", func() bool {
			c, err := iserclient.Open(r.peer, r.addr, iserclient.Options{}, iserclient.Login{Target: targetName})
			if err != nil {
				return false
			}
			return c.Logout() == nil
		})
	}
	r.works()
}

// TestFailedWork: any request of the target may fail; that ends this session and no other.
func TestFailedWork(t *testing.T) {
	for _, op := range []rdma.SendOp{rdma.OpSend, rdma.OpSendWithInv, rdma.OpRDMAWrite, rdma.OpRDMARead} {
		for _, status := range []rdma.Status{rdma.StatusRetryExcErr, rdma.StatusRemAccessErr, rdma.StatusLocProtErr, rdma.StatusFatalErr} {
			r := newRig(t)
			o := iserclient.Options{}
			if op == rdma.OpSend {
				o.PrivateData = []byte{iserclient.NoZBVA | iserclient.NoSendWithInv, 0, 0, 0}
			}
			bad, good := r.open(o), r.open(iserclient.Options{})
			var failed atomic.Bool
			r.fabric.SetFaults(rdmatest.Faults{Complete: func(w rdmatest.WorkInfo) rdma.Status {
				if !w.Recv && w.Op == op && w.QPNum != bad.QPNum() && w.QPNum != good.QPNum() && !failed.Swap(true) {
					return status
				}
				return rdma.StatusSuccess
			}})
			_, err := bad.Start(&iserclient.Command{CDB: iserclient.Write10(0, 128), Out: make([]byte, 65536), ImmediateData: -1})
			check(t, err)
			_, err = bad.Start(&iserclient.Command{CDB: iserclient.Read10(0, 128), In: 65536})
			check(t, err)
			eventually(t, op.String()+" of the target", failed.Load)
			_ = bad.Idle(5 * time.Millisecond)
			check(t, bad.Close())
			r.good(good, &iserclient.Command{CDB: iserclient.Read10(0, 128), In: 65536})
			check(t, good.Logout())
			r.fabric.SetFaults(rdmatest.Faults{})
			r.atRest()
		}
	}
}

// TestAbortAtSlowStore: a task is aborted while the store has it.
func TestAbortAtSlowStore(t *testing.T) {
	r := newRig(t)
	c := r.open(iserclient.Options{})
	r.fault.Hang(backstore.OpWrite)
	task, err := c.Start(&iserclient.Command{LUN: slow, CDB: iserclient.Write10(0, 8), Out: make([]byte, 4096)})
	check(t, err)
	eventually(t, "the store has it", func() bool { return r.fault.Held() == 1 })
	go func() {
		time.Sleep(5 * time.Millisecond)
		r.fault.Release()
	}()
	got, err := c.TMF(pdu.TMAbortTask, slow, task.ITT, serial.New(task.CmdSN))
	if err != nil || got != pdu.TMFunctionComplete && got != pdu.TMTaskDoesNotExist {
		t.Errorf("%s, %v", got, err)
	}
	check(t, c.Release(task))
	r.good(c, &iserclient.Command{LUN: slow, CDB: iserclient.Write10(0, 8), Out: make([]byte, 4096)})
	check(t, c.Logout())
}

// TestDisconnectAtSlowStore: the initiator goes while the store has its tasks; what they used stays until it is done.
func TestDisconnectAtSlowStore(t *testing.T) {
	r := newRig(t)
	c := r.open(iserclient.Options{})
	r.fault.Hang(backstore.OpWrite)
	for range 4 {
		_, err := c.Start(&iserclient.Command{LUN: slow, CDB: iserclient.Write10(0, 64), Out: make([]byte, 32768)})
		check(t, err)
	}
	eventually(t, "the store has them", func() bool { return r.fault.Held() == 4 })
	check(t, c.Disconnect())
	check(t, c.Close())
	r.works() // others are served meanwhile
	r.fault.Release()
	r.atRest()
}

// TestB125_NoReads: a peer that says that it answers no RDMA READ is taken to answer one at a time.
func TestB125_NoReads(t *testing.T) {
	r := newRig(t)
	c := r.open(iserclient.Options{NoReads: true})
	for _, task := range burst(t, c, 0, 8) {
		check(t, c.Wait(task))
		if task.Status != 0 {
			t.Errorf("status %#x", task.Status)
		}
		check(t, c.Release(task))
	}
	if s := r.target.Device("mem0").Stats(); s.MaxReads != 1 || c.ReadDepth != 1 {
		t.Errorf("%d RDMA READs at a time, told %d", s.MaxReads, c.ReadDepth)
	}
	check(t, c.Logout())
}
