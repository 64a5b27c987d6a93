package main

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"iserd/iscsi"
	"iserd/iscsi/login"
	"iserd/iscsi/tcp"
	"iserd/iser"
	"iserd/rdma"
)

// quiet holds back what strangers can cause as often as they like: a burst is logged, then a line now and then that says
// how much was left out.
type quiet struct {
	limit *rate.Limiter
	mu    sync.Mutex
	held  int
}

func newQuiet() *quiet { return &quiet{limit: rate.NewLimiter(rate.Every(2*time.Second), 20)} }

// fields adds the number of lines held back before this one; ok is false when this one is held back too.
func (q *quiet) fields(fields []zap.Field) (_ []zap.Field, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.limit.Allow() {
		q.held++
		return nil, false
	}
	if q.held > 0 {
		fields = append(fields, zap.Int("similar_lines_held_back", q.held))
		q.held = 0
	}
	return fields, true
}

func peer(p iscsi.Peer, more ...zap.Field) []zap.Field {
	f := []zap.Field{zap.String("initiator", p.Name), zap.Stringer("transport", p.Transport), zap.Stringer("from", p.Remote)}
	if p.Target != "" {
		f = append(f, zap.String("target", p.Target))
	}
	return append(f, more...)
}

func nodeEvents(log *zap.Logger) iscsi.Events {
	refusals, probes := newQuiet(), newQuiet()
	session := func(e iscsi.SessionEvent) []zap.Field {
		f := peer(e.Peer, zap.String("isid", fmt.Sprintf("%x", e.ISID)), zap.Uint16("tsih", e.TSIH))
		if e.Device != "" {
			f = append(f, zap.String("device", e.Device))
		}
		return f
	}
	ended := func(e iscsi.SessionEvent) []zap.Field {
		f := append(session(e), zap.Duration("lasted", time.Since(e.Since).Round(time.Millisecond)))
		if e.Cause != "" {
			f = append(f, zap.String("cause", e.Cause))
		}
		return f
	}
	// Discoveries come and go by the thousand: they are not worth a line each.
	level := func(e iscsi.SessionEvent) func(string, ...zap.Field) {
		if e.Discovery {
			return log.Debug
		}
		return log.Info
	}
	kind := func(e iscsi.SessionEvent, what string) string {
		if e.Discovery {
			return "discovery " + what
		}
		return what
	}
	return iscsi.Events{
		Login:      func(e iscsi.SessionEvent) { level(e)(kind(e, "login"), session(e)...) },
		Logout:     func(e iscsi.SessionEvent) { level(e)(kind(e, "logout"), ended(e)...) },
		Reinstated: func(e iscsi.SessionEvent) { log.Info("session replaced by a new login of its initiator", ended(e)...) },
		Removed:    func(e iscsi.SessionEvent) { log.Info(kind(e, "session ended by this daemon"), ended(e)...) },
		Lost: func(e iscsi.SessionEvent) {
			if e.Discovery {
				log.Debug("discovery ended without a logout", ended(e)...)
				return
			}
			log.Warn("session lost", ended(e)...)
		},
		Refused: func(e iscsi.RefusedEvent) {
			f := peer(e.Peer)
			if e.Status != login.StatusSuccess { // success: no response could say so
				f = append(f, zap.Stringer("status", e.Status))
			}
			if f, ok := refusals.fields(append(f, zap.String("cause", e.Cause))); ok {
				log.Warn("login refused", f...)
			}
		},
		Probe: func(e iscsi.ProbeEvent) {
			if f, ok := probes.fields([]zap.Field{zap.Stringer("from", e.Remote), zap.Stringer("transport", e.Transport), zap.String("cause", e.Cause)}); ok {
				log.Info("connection without a login", f...)
			}
		},
		TaskManagement: func(e iscsi.TaskManagementEvent) {
			log.Info("task management", peer(e.Peer, zap.Stringer("function", e.Function), zap.Stringer("response", e.Response),
				zap.Uint64("lun", e.LUN>>48&0x3fff), zap.Int("tasks", e.Tasks), zap.Int("late", e.Late), zap.Duration("took", e.Took.Round(time.Microsecond)))...)
		},
	}
}

func tcpEvents(log *zap.Logger) tcp.Events {
	accepts := newQuiet()
	return tcp.Events{
		AcceptError: func(err error, pause time.Duration) {
			if f, ok := accepts.fields([]zap.Field{zap.Error(err), zap.Duration("again_in", pause)}); ok {
				log.Error("connections cannot be accepted", f...)
			}
		},
	}
}

// storeFailed logs what a medium failed: a full file system fails every write, and initiators repeat them.
func storeFailed(log *zap.Logger) func(error) {
	failures := newQuiet()
	return func(err error) {
		if f, ok := failures.fields([]zap.Field{zap.Error(err)}); ok {
			log.Error("a store failed a request", f...)
		}
	}
}

func iserEvents(log *zap.Logger) iser.Events {
	refusals := newQuiet()
	return iser.Events{
		DeviceOpened: func(r iser.DeviceReport) {
			log.Info("RDMA device opened", zap.String("device", r.Device), zap.Int("shards", r.Shards), zap.Int("pool_bytes", r.PoolBytes),
				zap.Bool("huge_pages", r.HugePages))
			if r.MemoryError != nil {
				log.Warn("memory of a store is not registered: its reads are copied", zap.String("device", r.Device), zap.Error(r.MemoryError))
			}
		},
		DeviceFailed: func(d string, err error) {
			log.Error("RDMA device cannot be used", zap.String("device", d), zap.Error(err))
		},
		DeviceRemoved: func(d string) {
			log.Warn("RDMA device removed; serving goes on when it is back", zap.String("device", d))
		},
		Async: func(d string, e rdma.AsyncEvent) {
			log.Debug("RDMA event", zap.String("device", d), zap.String("event", string(e.Type)), zap.Uint32("qp", e.QPNum), zap.Int("port", e.Port))
		},
		ListenerLost: func(a netip.AddrPort, err error) {
			log.Warn("iSER listener lost; it is tried again", zap.Stringer("portal", a), zap.Error(err))
		},
		ListenerBack: func(a netip.AddrPort) { log.Info("iSER listener is back", zap.Stringer("portal", a)) },
		Refused: func(from netip.AddrPort, err error) {
			if f, ok := refusals.fields([]zap.Field{zap.Stringer("from", from), zap.Error(err)}); ok {
				log.Warn("RDMA connection refused", f...)
			}
		},
		Connected: func(from netip.AddrPort, d string) {
			log.Debug("RDMA connection", zap.Stringer("from", from), zap.String("device", d))
		},
		Disconnected: func(from netip.AddrPort, err error) {
			log.Debug("RDMA connection ended", zap.Stringer("from", from), zap.Error(err))
		},
	}
}
