package pdu

import "testing"

func TestCheck(t *testing.T) {
	edit := func(name string, f func(b *BHS)) BHS {
		var b BHS
		golden[name](&b)
		f(&b)
		return b
	}
	const ok = RejectReason(0)
	for _, tt := range []struct {
		name string
		bhs  BHS
		want RejectReason
	}{
		{"ping answer", edit("nop_out", func(b *BHS) { b.SetInitiatorTaskTag(ReservedTag); b.NOPOut().SetTargetTransferTag(5) }), ok},
		{"write without F", edit("scsi_command_write", func(b *BHS) { b.SetFinal(false) }), ok},
		{"write, all immediate", edit("scsi_command_write", func(b *BHS) { b.SetDataSegmentLength(4096) }), ok},
		{"unknown function is for the engine to answer", edit("task_management_request", func(b *BHS) { b.TaskManagementRequest().SetFunction(0x7f) }), ok},
		{"text without F or C", edit("text_request", func(b *BHS) { b.SetFinal(false) }), ok},
		{"B87 LUN of Data-Out", edit("data_out", func(b *BHS) { b.SetLUN(1<<64 - 1) }), ok},
		{"reserved fields", edit("logout_request", func(b *BHS) { b[2], b[3], b[40] = 1, 2, 3 }), ok},

		{"NOP-Out without tag, not immediate", edit("nop_out", func(b *BHS) { b.SetInitiatorTaskTag(ReservedTag); b.SetImmediate(false) }), RejectProtocolError},
		{"NOP-Out with AHS", edit("nop_out", func(b *BHS) { b.SetTotalAHSLength(4) }), RejectProtocolError},
		{"read without F", edit("scsi_command", func(b *BHS) { b.SetFinal(false) }), RejectProtocolError},
		{"command without tag", edit("scsi_command", func(b *BHS) { b.SetInitiatorTaskTag(ReservedTag) }), RejectInvalidPDUField},
		{"reserved attribute", edit("scsi_command", func(b *BHS) { b.SCSICommand().SetAttr(5) }), RejectInvalidPDUField},
		{"read with data", edit("scsi_command", func(b *BHS) { b.SetDataSegmentLength(1) }), RejectProtocolError},
		{"more immediate data than expected", edit("scsi_command_write", func(b *BHS) { b.SetDataSegmentLength(4097) }), RejectProtocolError},
		{"task management without tag", edit("task_management_request", func(b *BHS) { b.SetInitiatorTaskTag(ReservedTag) }), RejectInvalidPDUField},
		{"task management with data", edit("task_management_request", func(b *BHS) { b.SetDataSegmentLength(1) }), RejectInvalidPDUField},
		{"login with T and C", edit("login_request", func(b *BHS) { b.LoginRequest().SetContinue(true) }), RejectProtocolError},
		{"text with F and C", edit("text_request", func(b *BHS) { b.TextRequest().SetContinue(true) }), RejectProtocolError},
		{"text without tag", edit("text_request", func(b *BHS) { b.SetInitiatorTaskTag(ReservedTag) }), RejectProtocolError},
		{"text with AHS", edit("text_request", func(b *BHS) { b.SetTotalAHSLength(1020) }), RejectProtocolError},
		{"Data-Out without tag", edit("data_out", func(b *BHS) { b.SetInitiatorTaskTag(ReservedTag) }), RejectInvalidPDUField},
		{"logout with data", edit("logout_request", func(b *BHS) { b.SetDataSegmentLength(4) }), RejectInvalidPDUField},
		{"logout for no reason", edit("logout_request", func(b *BHS) { b.LogoutRequest().SetReason(3) }), RejectInvalidPDUField},
		{"logout without tag", edit("logout_request", func(b *BHS) { b.SetInitiatorTaskTag(ReservedTag) }), RejectInvalidPDUField},
		{"SNACK with data", edit("snack", func(b *BHS) { b.SetDataSegmentLength(4) }), RejectInvalidPDUField},
		{"vendor opcode", BHS{0x1c}, RejectCommandNotSupported},
		{"B96 unknown opcode with AHS", BHS{0x0f, 0x80, 0, 0, 0xff}, RejectCommandNotSupported},
		{"a response", edit("r2t", func(*BHS) {}), RejectCommandNotSupported},
	} {
		got, good := tt.bhs.Check()
		if got != tt.want || good != (tt.want == ok) {
			t.Errorf("%s: %v %v, want %v", tt.name, got, good, tt.want)
		}
	}
}

func TestNoAllocations(t *testing.T) {
	var b BHS
	golden["scsi_command"](&b)
	ahs := AppendExtendedCDB(nil, make([]byte, 32))
	text := []byte("InitiatorName=iqn.2001-04.com.example:a\x00MaxBurstLength=262144\x00")
	cdb := make([]byte, 0, MaxCDB)
	n := 0
	visit := func(k, v []byte) error { n += len(k) + len(v); return nil }
	if avg := testing.AllocsPerRun(100, func() {
		if _, ok := b.Check(); !ok {
			t.Fatal("Check")
		}
		if b.SCSICommand().CmdSN() != gCmdSN {
			t.Fatal("CmdSN")
		}
		b.SCSIResponse().SetStatSN(gStatSN)
		golden["scsi_command"](&b)
		for it := ParseAHS(ahs); it.Next(); {
			n += len(it.Body())
		}
		if _, err := AppendCDB(cdb, b.SCSICommand(), ahs); err != nil {
			t.Fatal(err)
		}
		if err := ParseKeys(text, visit); err != nil {
			t.Fatal(err)
		}
	}); avg != 0 {
		t.Errorf("%v allocations", avg)
	}
}
