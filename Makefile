# What people run. Each target installs what it lacks (scripts/bootstrap) and says what it does.
SHELL := /bin/bash
export PATH := $(PATH):/usr/local/go/bin
GO ?= go
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || sed -n 's/^\#\# \[\?\([0-9][^] ]*\).*/\1/p' CHANGELOG.md | head -1)
LDFLAGS := -X main.version=$(or $(VERSION),unknown)
FUZZTIME ?= 5s
PREFIX ?= /usr/local
# cgo can build only where the headers are; without them RDMA is done in user space, or not at all, and the binary says so.
HEADERS = $(shell printf '\#include <rdma/rdma_cma.h>\n' | $${CC:-cc} -E - >/dev/null 2>&1 && echo yes)

.PHONY: help build build-static demo test check lab fuzz bench install clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 16

build: ## build bin/iserd and bin/iserbench
	@scripts/bootstrap build
	@mkdir -p bin
	@if [ "$(HEADERS)" = yes ]; then $(GO) build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/iserd ./cmd/iserbench; \
	else echo "no RDMA headers (libibverbs-dev, librdmacm-dev): building without libibverbs; RDMA by softroce alone"; \
		CGO_ENABLED=0 $(GO) build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/iserd ./cmd/iserbench; fi
	@bin/iserd version | head -1

build-static: ## build bin/iserd-static without cgo: one file, no libraries; RDMA by softroce alone
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/iserd-static ./cmd/iserd

demo: ## iSER on this machine without RDMA hardware or root: write, verify, measure, a page with plots
	@scripts/bootstrap build demo
	@$(MAKE) --no-print-directory build
	@scripts/demo

test: ## vet and unit tests; no privileges needed
	@scripts/bootstrap build test
	@scripts/check vet unit

check: ## everything a change must pass: gofmt, vet, staticcheck, race, no cgo, fuzz, benchmarks
	@scripts/bootstrap build test
	@FUZZTIME=$(FUZZTIME) scripts/check all

fuzz: ## fuzz every parser for FUZZTIME each
	@FUZZTIME=$(FUZZTIME) scripts/check fuzz

bench: ## every benchmark, five times
	$(GO) test -run '^$$' -bench . -benchmem -count 5 ./...

lab: ## the kernel's own initiator against iserd, in a guest or on this host: scripts/lab --help
	@scripts/bootstrap build lab
	@$(MAKE) --no-print-directory build
	@scripts/lab run

install: build ## install iserd and iserbench under PREFIX
	install -D -m 0755 bin/iserd $(DESTDIR)$(PREFIX)/sbin/iserd
	install -D -m 0755 bin/iserbench $(DESTDIR)$(PREFIX)/bin/iserbench

clean: ## remove what was built
	rm -rf bin out
