// Command iserd serves logical units over iSER and iSCSI. Flags, logs, signals and the service manager are its whole
// business; everything else is package target's.
package main
