package login

import "fmt"

// Status is Status-Class and Status-Detail of a Login Response, class in the high byte.
type Status uint16

const (
	StatusSuccess                Status = 0x0000
	StatusMovedTemporarily       Status = 0x0101
	StatusMovedPermanently       Status = 0x0102
	StatusInitiatorError         Status = 0x0200
	StatusAuthenticationFailure  Status = 0x0201
	StatusAuthorizationFailure   Status = 0x0202
	StatusNotFound               Status = 0x0203
	StatusTargetRemoved          Status = 0x0204
	StatusUnsupportedVersion     Status = 0x0205
	StatusTooManyConnections     Status = 0x0206
	StatusMissingParameter       Status = 0x0207
	StatusCannotIncludeInSession Status = 0x0208
	StatusSessionTypeUnsupported Status = 0x0209
	StatusSessionDoesNotExist    Status = 0x020a
	StatusInvalidDuringLogin     Status = 0x020b
	StatusTargetError            Status = 0x0300
	StatusServiceUnavailable     Status = 0x0301
	StatusOutOfResources         Status = 0x0302
)

var statusNames = map[Status]string{
	StatusSuccess:                "success",
	StatusMovedTemporarily:       "target moved temporarily",
	StatusMovedPermanently:       "target moved permanently",
	StatusInitiatorError:         "initiator error",
	StatusAuthenticationFailure:  "authentication failure",
	StatusAuthorizationFailure:   "authorization failure",
	StatusNotFound:               "target not found",
	StatusTargetRemoved:          "target removed",
	StatusUnsupportedVersion:     "unsupported version",
	StatusTooManyConnections:     "too many connections",
	StatusMissingParameter:       "missing parameter",
	StatusCannotIncludeInSession: "cannot include in session",
	StatusSessionTypeUnsupported: "session type not supported",
	StatusSessionDoesNotExist:    "session does not exist",
	StatusInvalidDuringLogin:     "invalid request during login",
	StatusTargetError:            "target error",
	StatusServiceUnavailable:     "service unavailable",
	StatusOutOfResources:         "out of resources",
}

func (s Status) String() string {
	if name, ok := statusNames[s]; ok {
		return fmt.Sprintf("%s (%02x/%02x)", name, s.Class(), s.Detail())
	}
	return fmt.Sprintf("status %02x/%02x", s.Class(), s.Detail())
}

// Class is 0 for success, 1 for redirection, 2 when the initiator is at fault, 3 when the target is.
func (s Status) Class() uint8 { return uint8(s >> 8) }

// Detail tells the statuses of one class apart.
func (s Status) Detail() uint8 { return uint8(s) }

// Redirect says that the status sends the initiator elsewhere.
func (s Status) Redirect() bool { return s.Class() == 1 }
