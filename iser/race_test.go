//go:build race

package iser

const raceEnabled = true
