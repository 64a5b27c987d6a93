package pdu

import "strconv"

// Opcode is the low six bits of the first byte of a PDU (RFC 7143).
type Opcode uint8

const (
	OpNOPOut                 Opcode = 0x00
	OpSCSICommand            Opcode = 0x01
	OpTaskManagementRequest  Opcode = 0x02
	OpLoginRequest           Opcode = 0x03
	OpTextRequest            Opcode = 0x04
	OpDataOut                Opcode = 0x05
	OpLogoutRequest          Opcode = 0x06
	OpSNACK                  Opcode = 0x10
	OpNOPIn                  Opcode = 0x20
	OpSCSIResponse           Opcode = 0x21
	OpTaskManagementResponse Opcode = 0x22
	OpLoginResponse          Opcode = 0x23
	OpTextResponse           Opcode = 0x24
	OpDataIn                 Opcode = 0x25
	OpLogoutResponse         Opcode = 0x26
	OpR2T                    Opcode = 0x31
	OpAsyncMessage           Opcode = 0x32
	OpReject                 Opcode = 0x3f
)

var opcodeNames = map[Opcode]string{
	OpNOPOut: "NOP-Out", OpSCSICommand: "SCSI Command", OpTaskManagementRequest: "Task Management Function Request",
	OpLoginRequest: "Login Request", OpTextRequest: "Text Request", OpDataOut: "SCSI Data-Out", OpLogoutRequest: "Logout Request",
	OpSNACK: "SNACK Request", OpNOPIn: "NOP-In", OpSCSIResponse: "SCSI Response",
	OpTaskManagementResponse: "Task Management Function Response", OpLoginResponse: "Login Response", OpTextResponse: "Text Response",
	OpDataIn: "SCSI Data-In", OpLogoutResponse: "Logout Response", OpR2T: "Ready To Transfer", OpAsyncMessage: "Asynchronous Message",
	OpReject: "Reject",
}

func (o Opcode) String() string {
	if s, ok := opcodeNames[o]; ok {
		return s
	}
	return "opcode 0x" + strconv.FormatUint(uint64(o), 16)
}

// FromInitiator says that an initiator may send the opcode.
func (o Opcode) FromInitiator() bool {
	return o <= OpLogoutRequest || o == OpSNACK
}
