package pdu

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"iserd/internal/serial"
)

// readHex reads a golden file: the first line says where the bytes come from.
func readHex(t testing.TB, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	origin, body, ok := strings.Cut(string(raw), "\n")
	if !ok || !strings.HasPrefix(origin, "# ") {
		t.Fatalf("%s: the first line must say the origin", path)
	}
	b, err := hex.DecodeString(strings.Join(strings.Fields(body), ""))
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return b
}

const (
	gLUN = 0x0001000000000000
	gITT = 0x11223344
	gTTT = 0x99aabbcc
)

var (
	gCmdSN, gExpStatSN          = serial.New(0x01020304), serial.New(0x05060708)
	gStatSN, gExpCmdSN, gMaxCmd = serial.New(0x21222324), serial.New(0x25262728), serial.New(0x292a2b2c)
	gISID                       = [6]byte{0x00, 0x02, 0x3d, 1, 2, 3}
)

// golden has, for each file of testdata, how the same PDU is made with setters.
var golden = map[string]func(b *BHS){
	"nop_out": func(b *BHS) {
		p := b.NOPOut()
		p.Init()
		b.SetImmediate(true)
		b.SetDataSegmentLength(4)
		p.SetLUN(gLUN)
		p.SetInitiatorTaskTag(gITT)
		p.SetTargetTransferTag(ReservedTag)
		p.SetCmdSN(gCmdSN)
		p.SetExpStatSN(gExpStatSN)
	},
	"scsi_command": func(b *BHS) {
		p := b.SCSICommand()
		p.Init()
		p.SetFinal(true)
		p.SetRead(true)
		p.SetAttr(AttrSimple)
		p.SetLUN(gLUN)
		p.SetInitiatorTaskTag(gITT)
		p.SetExpectedDataTransferLength(4096)
		p.SetCmdSN(gCmdSN)
		p.SetExpStatSN(gExpStatSN)
		copy(p.CDB()[:], "\x28\x00\x00\x00\x00\x08\x00\x00\x08\x00")
	},
	"scsi_command_write": func(b *BHS) {
		p := b.SCSICommand()
		p.Init()
		p.SetFinal(true)
		p.SetWrite(true)
		p.SetAttr(AttrOrdered)
		b.SetImmediate(true)
		b.SetTotalAHSLength(12)
		b.SetDataSegmentLength(512)
		p.SetLUN(gLUN)
		p.SetInitiatorTaskTag(gITT)
		p.SetExpectedDataTransferLength(4096)
		p.SetCmdSN(gCmdSN)
		p.SetExpStatSN(gExpStatSN)
		copy(p.CDB()[:], "\x2a\x00\x00\x00\x00\x08\x00\x00\x08\x00")
	},
	"task_management_request": func(b *BHS) {
		p := b.TaskManagementRequest()
		p.Init()
		b.SetImmediate(true)
		p.SetFunction(TMAbortTask)
		p.SetLUN(gLUN)
		p.SetInitiatorTaskTag(gITT)
		p.SetReferencedTaskTag(0x55667788)
		p.SetCmdSN(gCmdSN)
		p.SetExpStatSN(gExpStatSN)
		p.SetRefCmdSN(serial.New(0x090a0b0c))
		p.SetExpDataSN(0x0d0e0f10)
	},
	"login_request": func(b *BHS) {
		p := b.LoginRequest()
		p.Init()
		p.SetTransit(true)
		p.SetCSG(StageOperational)
		p.SetNSG(StageFullFeature)
		b.SetDataSegmentLength(137)
		p.SetISID(gISID)
		p.SetInitiatorTaskTag(gITT)
		p.SetCID(1)
		p.SetCmdSN(gCmdSN)
		p.SetExpStatSN(gExpStatSN)
	},
	"login_request_continued": func(b *BHS) {
		p := b.LoginRequest()
		p.Init()
		p.SetContinue(true)
		p.SetCSG(StageOperational)
		b.SetDataSegmentLength(8192)
		p.SetISID(gISID)
		p.SetTSIH(0x1234)
		p.SetInitiatorTaskTag(gITT)
		p.SetCID(1)
		p.SetCmdSN(gCmdSN)
		p.SetExpStatSN(gExpStatSN)
	},
	"text_request": func(b *BHS) {
		p := b.TextRequest()
		p.Init()
		p.SetFinal(true)
		b.SetDataSegmentLength(16)
		p.SetInitiatorTaskTag(gITT)
		p.SetTargetTransferTag(ReservedTag)
		p.SetCmdSN(gCmdSN)
		p.SetExpStatSN(gExpStatSN)
	},
	"data_out": func(b *BHS) {
		p := b.DataOut()
		p.Init()
		p.SetFinal(true)
		b.SetDataSegmentLength(1024)
		p.SetLUN(gLUN)
		p.SetInitiatorTaskTag(gITT)
		p.SetTargetTransferTag(gTTT)
		p.SetExpStatSN(gExpStatSN)
		p.SetDataSN(3)
		p.SetBufferOffset(0x2000)
	},
	"logout_request": func(b *BHS) {
		p := b.LogoutRequest()
		p.Init()
		b.SetImmediate(true)
		p.SetReason(LogoutCloseConnection)
		p.SetInitiatorTaskTag(gITT)
		p.SetCID(1)
		p.SetCmdSN(gCmdSN)
		p.SetExpStatSN(gExpStatSN)
	},
	"snack": func(b *BHS) {
		p := b.SNACK()
		p.Init()
		p.SetType(SNACKStatus)
		p.SetLUN(gLUN)
		p.SetInitiatorTaskTag(ReservedTag)
		p.SetTargetTransferTag(gTTT)
		p.SetExpStatSN(gExpStatSN)
		p.SetBegRun(7)
		p.SetRunLength(2)
	},
	"nop_in": func(b *BHS) {
		p := b.NOPIn()
		p.Init()
		p.SetLUN(gLUN)
		p.SetInitiatorTaskTag(ReservedTag)
		p.SetTargetTransferTag(gTTT)
		p.SetStatSN(gStatSN)
		p.SetExpCmdSN(gExpCmdSN)
		p.SetMaxCmdSN(gMaxCmd)
	},
	"scsi_response": func(b *BHS) {
		p := b.SCSIResponse()
		p.Init()
		p.SetStatus(2)
		b.SetDataSegmentLength(20)
		p.SetInitiatorTaskTag(gITT)
		p.SetStatSN(gStatSN)
		p.SetExpCmdSN(gExpCmdSN)
		p.SetMaxCmdSN(gMaxCmd)
		p.SetExpDataSN(5)
		p.SetResidual(ResidualUnderflow, 0xe00)
	},
	"scsi_response_bidi": func(b *BHS) {
		p := b.SCSIResponse()
		p.Init()
		p.SetResponse(ResponseTargetFailure)
		p.SetInitiatorTaskTag(gITT)
		p.SetSNACKTag(0x31323334)
		p.SetStatSN(gStatSN)
		p.SetExpCmdSN(gExpCmdSN)
		p.SetMaxCmdSN(gMaxCmd)
		p.SetExpDataSN(5)
		p.SetBidiReadResidual(ResidualOverflow, 0x40)
		p.SetResidual(ResidualOverflow, 0x80)
	},
	"task_management_response": func(b *BHS) {
		p := b.TaskManagementResponse()
		p.Init()
		p.SetResponse(TMTaskDoesNotExist)
		p.SetInitiatorTaskTag(gITT)
		p.SetStatSN(gStatSN)
		p.SetExpCmdSN(gExpCmdSN)
		p.SetMaxCmdSN(gMaxCmd)
	},
	"login_response": func(b *BHS) {
		p := b.LoginResponse()
		p.Init()
		p.SetTransit(true)
		p.SetCSG(StageOperational)
		p.SetNSG(StageFullFeature)
		b.SetDataSegmentLength(25)
		p.SetISID(gISID)
		p.SetTSIH(0x1234)
		p.SetInitiatorTaskTag(gITT)
		p.SetStatSN(gStatSN)
		p.SetExpCmdSN(gExpCmdSN)
		p.SetMaxCmdSN(gMaxCmd)
	},
	"login_response_refused": func(b *BHS) {
		p := b.LoginResponse()
		p.Init()
		p.SetCSG(StageOperational)
		p.SetISID(gISID)
		p.SetInitiatorTaskTag(gITT)
		p.SetStatSN(gStatSN)
		p.SetExpCmdSN(gExpCmdSN)
		p.SetMaxCmdSN(gMaxCmd)
		p.SetStatusClass(2)
		p.SetStatusDetail(3)
	},
	"text_response": func(b *BHS) {
		p := b.TextResponse()
		p.Init()
		p.SetContinue(true)
		b.SetDataSegmentLength(8192)
		p.SetInitiatorTaskTag(gITT)
		p.SetTargetTransferTag(gTTT)
		p.SetStatSN(gStatSN)
		p.SetExpCmdSN(gExpCmdSN)
		p.SetMaxCmdSN(gMaxCmd)
	},
	"data_in": func(b *BHS) {
		p := b.DataIn()
		p.Init()
		p.SetFinal(true)
		p.SetHasStatus(true)
		b.SetDataSegmentLength(512)
		p.SetLUN(gLUN)
		p.SetInitiatorTaskTag(gITT)
		p.SetTargetTransferTag(ReservedTag)
		p.SetStatSN(gStatSN)
		p.SetExpCmdSN(gExpCmdSN)
		p.SetMaxCmdSN(gMaxCmd)
		p.SetDataSN(4)
		p.SetBufferOffset(0x1000)
		p.SetResidual(ResidualUnderflow, 0x200)
	},
	"logout_response": func(b *BHS) {
		p := b.LogoutResponse()
		p.Init()
		p.SetInitiatorTaskTag(gITT)
		p.SetStatSN(gStatSN)
		p.SetExpCmdSN(gExpCmdSN)
		p.SetMaxCmdSN(gMaxCmd)
		p.SetTime2Wait(2)
		p.SetTime2Retain(20)
	},
	"r2t": func(b *BHS) {
		p := b.R2T()
		p.Init()
		p.SetLUN(gLUN)
		p.SetInitiatorTaskTag(gITT)
		p.SetTargetTransferTag(gTTT)
		p.SetStatSN(gStatSN)
		p.SetExpCmdSN(gExpCmdSN)
		p.SetMaxCmdSN(gMaxCmd)
		p.SetR2TSN(2)
		p.SetBufferOffset(0x4000)
		p.SetDesiredDataTransferLength(0x2000)
	},
	"async_message": func(b *BHS) {
		p := b.AsyncMessage()
		p.Init()
		p.SetStatSN(gStatSN)
		p.SetExpCmdSN(gExpCmdSN)
		p.SetMaxCmdSN(gMaxCmd)
		p.SetAsyncEvent(AsyncConnectionDrop)
		p.SetAsyncVCode(7)
		p.SetParameter1(1)
		p.SetParameter2(2)
		p.SetParameter3(20)
	},
	"reject": func(b *BHS) {
		p := b.Reject()
		p.Init()
		p.SetReason(RejectProtocolError)
		b.SetDataSegmentLength(48)
		p.SetStatSN(gStatSN)
		p.SetExpCmdSN(gExpCmdSN)
		p.SetMaxCmdSN(gMaxCmd)
		p.SetDataSN(6)
	},
}

func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.hex")
	if err != nil || len(files) != len(golden) {
		t.Fatalf("%d golden files for %d makers, %v", len(files), len(golden), err)
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".hex")
		t.Run(name, func(t *testing.T) {
			want := readHex(t, f)
			if len(want) != BHSLength {
				t.Fatalf("%d bytes", len(want))
			}
			var b BHS
			for i := range b {
				b[i] = 0xa5 // Init must not leave anything of what was there
			}
			golden[name](&b)
			if b != BHS(want) {
				t.Fatalf("made\n% x\nwant\n% x", b[:], want)
			}
			if b.Opcode().FromInitiator() {
				if r, ok := b.Check(); !ok {
					t.Fatalf("Check: %v", r)
				}
			} else if _, ok := b.Check(); ok {
				t.Fatal("a target's PDU passes Check")
			}
		})
	}
}
