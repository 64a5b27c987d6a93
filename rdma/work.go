package rdma

import "strconv"

// SGE is one piece of registered memory: Length bytes at Addr, under LKey.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// SendOp is the operation of a send work request.
type SendOp uint8

const (
	OpSend SendOp = iota
	OpSendWithInv
	OpRDMAWrite
	OpRDMARead
)

func (o SendOp) String() string {
	switch o {
	case OpSend:
		return "SEND"
	case OpSendWithInv:
		return "SEND_WITH_INV"
	case OpRDMAWrite:
		return "RDMA_WRITE"
	case OpRDMARead:
		return "RDMA_READ"
	}
	return "OP(" + strconv.Itoa(int(o)) + ")"
}

// SendFlags modify a send work request.
type SendFlags uint8

const (
	// SendSignaled asks for a completion on success too; failures always complete.
	SendSignaled SendFlags = 1 << iota
	// SendInline copies the data into the request during the post: the memory is free at once and needs no key. The sum
	// of the lengths must be within [QPCaps.MaxInline].
	SendInline
	// SendFence holds the request until earlier RDMA READs of this queue pair are done.
	SendFence
	// SendSolicited marks the message for peers that arm for solicited events only.
	SendSolicited
)

// SendWR is a send work request. ID comes back in [WC.ID]; it is the caller's slot number, never an address.
type SendWR struct {
	ID         uint64
	SGE        []SGE // read during the post only
	RemoteAddr uint64
	RKey       uint32
	InvRKey    uint32 // OpSendWithInv: the peer's key to invalidate
	Op         SendOp
	Flags      SendFlags
}

// RecvWR is a receive work request.
type RecvWR struct {
	ID  uint64
	SGE []SGE // read during the post only
}

// QPPost is the work of one queue pair for one [Device.Post].
type QPPost struct {
	QP    QP
	Recvs []RecvWR
	Sends []SendWR
	// RecvsPosted and SendsPosted say how many the provider took; less than all comes with Err, and the rest was not
	// posted. ENOMEM (queue full) is an [OpError].
	RecvsPosted, SendsPosted int
	Err                      error
}

// WCOp says which kind of request a completion is for. It is valid for successful completions only: a failed one has
// just ID, Status, VendorErr and QPNum.
type WCOp uint8

const (
	WCSend WCOp = iota
	WCRDMAWrite
	WCRDMARead
	WCRecv
)

// WC is a work completion.
type WC struct {
	ID        uint64
	Status    Status
	Op        WCOp
	WithInv   bool // a receive whose SEND invalidated InvRKey
	ByteLen   uint32
	QPNum     uint32
	InvRKey   uint32
	VendorErr uint32
}

// Err is nil for a successful completion, a [*WCError] otherwise.
func (w *WC) Err() error {
	if w.Status == StatusSuccess {
		return nil
	}
	return &WCError{Status: w.Status, VendorErr: w.VendorErr, QPNum: w.QPNum}
}

// Status is the status of a work completion; the values are those of enum ibv_wc_status.
type Status uint8

const (
	StatusSuccess Status = iota
	StatusLocLenErr
	StatusLocQPOpErr
	StatusLocEECOpErr
	StatusLocProtErr
	StatusFlushed
	StatusMWBindErr
	StatusBadRespErr
	StatusLocAccessErr
	StatusRemInvReqErr
	StatusRemAccessErr
	StatusRemOpErr
	StatusRetryExcErr
	StatusRNRRetryExcErr
	StatusLocRDDViolErr
	StatusRemInvRDReqErr
	StatusRemAbortErr
	StatusInvEECNErr
	StatusInvEECStateErr
	StatusFatalErr
	StatusRespTimeoutErr
	StatusGeneralErr
)

var statusNames = [...]string{"SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR", "MW_BIND_ERR",
	"BAD_RESP_ERR", "LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR", "RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR",
	"LOC_RDD_VIOL_ERR", "REM_INV_RD_REQ_ERR", "REM_ABORT_ERR", "INV_EECN_ERR", "INV_EEC_STATE_ERR", "FATAL_ERR", "RESP_TIMEOUT_ERR",
	"GENERAL_ERR"}

func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return "STATUS(" + strconv.Itoa(int(s)) + ")"
}
