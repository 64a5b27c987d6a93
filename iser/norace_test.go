//go:build !race

package iser

const raceEnabled = false
