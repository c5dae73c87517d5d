# Everything is one command. `make help` lists them; each installs what it
# needs, once. Tools are built into $(CACHE)/tools, keyed by their version.

GO            ?= go
CACHE         ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/takt
GOLANGCI_LINT := v2.15.0
LINT          := $(CACHE)/tools/golangci-lint-$(GOLANGCI_LINT)/golangci-lint
GO_LICENSES   := v1.6.0
LICENSES      := $(CACHE)/tools/go-licenses-$(GO_LICENSES)/go-licenses
GOVULNCHECK   := v1.9.0
VULN          := $(CACHE)/tools/govulncheck-$(GOVULNCHECK)/govulncheck
VERSITYGW     := v1.8.0
S3_SERVER     := $(CACHE)/tools/versitygw-$(VERSITYGW)/versitygw
REGISTRY      := v0.22.1
IMAGE_SERVER  := $(CACHE)/tools/registry-$(REGISTRY)/registry
NATS          := v2.15.3
NATS_SERVER   := $(CACHE)/tools/nats-server-$(NATS)/nats-server
OTEL          := v0.145.0
COLLECTOR     := $(CACHE)/tools/otelcol-$(OTEL)/otelcol
AXE_VERSION   := 4.11.0
WEBHOOKS_VERSION := 1.0.0
WEBHOOKS      := $(CACHE)/tools/standardwebhooks-$(WEBHOOKS_VERSION)/node_modules/standardwebhooks
AXE           := $(CACHE)/tools/axe-core-$(AXE_VERSION)/axe.min.js
NFPM_VERSION  := v2.45.2
NFPM          := $(CACHE)/tools/nfpm-$(NFPM_VERSION)/nfpm
SCREENSHOTS   ?= .cache/screenshots
BIN           := bin/takt
PROGRAMS      := ./cmd/takt ./cmd/takt-demo ./cmd/takt-bench ./cmd/takt-drill ./cmd/takt-attack
RUN_DIR       ?= .cache/run
FUZZTIME      ?= 30s
DRILL         ?= 2m
PACKAGES      ?= ./...
IMAGE         ?= localhost/takt
RELEASES      ?= .cache/release
# VERSION=1.2.3 makes a build say that it is this release.
LDFLAGS        = $(if $(VERSION),-ldflags "-X main.release=$(VERSION) -X main.commit=$(shell git rev-parse HEAD)")

# What the tests of PACKAGES run against beyond PostgreSQL and git, which suffice for make test.
SERVERS = $(if $(filter ./...,$(PACKAGES)),setup-postgres setup-git setup-curl setup-s3 setup-podman setup-promtool setup-otel setup-browser setup-webhooks,$(shell .ci/servers $(PACKAGES)))
FIND    := TAKT_TEST_TOOLS=$(CACHE)/tools
# Needs that the tests of make check may do without. A machine has cgroups of one version.
LACKS   ?= cgroups v1,cgroups v2
NEEDS   := $(FIND) TAKT_TEST_NEEDS=all TAKT_TEST_LACKS='$(LACKS)'
GOTEST   = $(GO) run ./cmd/internal/gotest

# The tests of programs start them, as they are built for users, without the race detector; those
# of packages run in one process, with it.
PROGRAM := '^takt/cmd/\(takt\|internal/\(command\|docs\|e2e/\)\)'
ENDS    = $(shell $(GO) list $(PACKAGES) | grep $(PROGRAM))
PARTS   = $(shell $(GO) list $(PACKAGES) | grep -v $(PROGRAM))

# The tests of what operators install take minutes, so only `make test-install` runs them.
INSTALL_TEST := $(NEEDS) TAKT_TEST_INSTALL=1 $(GO) test -count 1 -v -timeout 20m ./cmd/internal/e2e/install

export GOTOOLCHAIN := local

.DEFAULT_GOAL := help
.PHONY: $(shell sed -n 's/^\([a-z][a-z0-9-]*\):.*/\1/p' $(MAKEFILE_LIST))

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/takt, bin/takt-demo, bin/takt-bench, bin/takt-drill and bin/takt-attack
	$(GO) build -trimpath $(LDFLAGS) -o $(dir $(BIN)) $(PROGRAMS)

release: ## build the release VERSION for Linux and macOS into .cache/release/VERSION, the same bytes each time
	@.ci/release "$(VERSION)" "$(RELEASES)/$(VERSION)"

image: ## build the images IMAGE (localhost/takt) of the controller and IMAGE-worker, with podman, buildah or docker
	CGO_ENABLED=0 GOOS=linux $(GO) build -trimpath $(LDFLAGS) -o .cache/image/takt ./cmd/takt
	@deploy/image/build .cache/image/takt $(IMAGE):$(or $(VERSION),latest)

demo: setup-postgres build ## run the main job end to end; DASHBOARD=1 keeps all running for a look around
	$(BIN)-demo $(if $(DASHBOARD),--stay)

demo-deploy: setup-postgres setup-git build ## copy an organisation of fifty real repositories, with a progress bar
	$(BIN)-demo deploy

demo-throttle: setup-postgres build ## pace 200 webhooks of a stand-in for HubSpot at 10 a second
	$(BIN)-demo throttle

run: setup-postgres build ## serve on 127.0.0.1:3000 with an embedded database in .cache/run
	$(BIN) serve --data-dir $(RUN_DIR) --platforms ios,android,linux

dev: setup-postgres ## serve as make run does, but read the pages from the sources: an open page follows their changes
	$(GO) run -tags dev ./cmd/takt serve --data-dir $(RUN_DIR) --platforms ios,android,linux

unit: ## run the tests that need nothing but Go: no server, no network, no root
	$(GO) test -short -timeout 5m $(PACKAGES)

test: ## run all tests that need no more than Go, PostgreSQL and git; PACKAGES=./actors/queue runs some
	@.ci/setup postgres git
	@mkdir -p .cache
	$(FIND) TAKT_TEST_NEEDS=basic CGO_ENABLED=0 $(GOTEST) -passed .cache/passed -- -count 1 -vet=off -timeout 30m $(PACKAGES)

check: lint vet vuln check-tests ## check what CI checks: lint, vet, vulnerabilities, and every test with all that it needs

# After make test in one run of make, the tests of programs that passed there are not repeated.
check-tests: announce setup-cc $(SERVERS) ## run every test, those of packages with the race detector, and install what they need
	$(if $(PARTS),$(NEEDS) CGO_ENABLED=1 $(GOTEST) -- -race -count 1 -vet=off -timeout 30m $(PARTS))
	$(if $(ENDS),$(NEEDS) CGO_ENABLED=0 $(GOTEST) $(if $(filter test,$(MAKECMDGOALS)),-except .cache/passed) -- -count 1 -vet=off -timeout 30m $(ENDS))
	$(GO) test -tags dev -run TestDev ./http/dashboard
	@$(GO) run ./cmd/internal/mutants -stale || echo "make mutants will fail for these until testdata/mutants.txt is mended" >&2

test-race: announce setup-cc $(SERVERS) ## run every test with the race detector, in the programs that tests start, too
	$(NEEDS) CGO_ENABLED=1 $(GOTEST) -- -race -count 1 -vet=off -timeout 60m $(PACKAGES)

test-long: setup-cc setup-postgres setup-git setup-s3 ## run with all their repetitions the tests that make test shortens
	TAKT_TEST_LONG=1 $(FIND) CGO_ENABLED=1 $(GO) test -race -count 1 -run 'TestKilledBetweenCommitAndReply|TestDeploymentSurvivesKills|TestTheKeyIsChangedUnderLoad|TestAFrozenDatabase' -timeout 17m ./cmd/internal/e2e/recovery ./cmd/internal/e2e/services
	TAKT_TEST_LONG=1 $(FIND) CGO_ENABLED=1 $(GO) test -race -count 1 -timeout 17m ./store/postgres ./actors/queue
	TAKT_TEST_LONG=1 $(FIND) $(GO) test -count 1 -run 'TestScaleIsMeasured|TestBenchTakesItsFigures|TestPeersAreCompared' -timeout 30m ./cmd/takt-bench

drill: setup-postgres setup-s3 setup-git setup-cc ## make faults around two controllers, and failovers, under load for DRILL (2m), and check every promise
	TAKT_DRILL=$(DRILL) $(FIND) CGO_ENABLED=1 $(GO) test -race -run 'TestDrillFindsThatPromisesAreKept|TestDrillOfFailovers' -v -count 1 -timeout 90m ./cmd/takt-drill

attack: setup-postgres build ## attack takt with low keys, with half a core and without limit, and measure what others notice
	$(BIN)-attack

test-install: test-package test-image test-proxies test-controllers test-databases test-release ## test what operators install: package, images, compose file, proxies, several controllers, PgBouncer, releases

test-image: setup-postgres setup-podman ## build the images on a new Debian and run them, with a read-only root file system, as root
	@.ci/setup debootstrap compose
	$(INSTALL_TEST) -run 'TestInstallImages|TestInstallComposeFile'

test-proxies: setup-postgres ## run nginx and Caddy, as configured in deploy/, in front of takt
	@.ci/setup nginx caddy
	$(INSTALL_TEST) -run TestInstallProxies

test-controllers: setup-postgres ## kill, stop, replace and upgrade (from 0.1.0) controllers behind HAProxy, as configured in deploy/
	@.ci/setup haproxy
	$(INSTALL_TEST) -run 'TestInstallHAProxy|TestInstallOlderControllers'

test-databases: setup-postgres ## run takt behind PgBouncer in transaction mode
	@.ci/setup pgbouncer
	$(INSTALL_TEST) -run TestInstallPgBouncer

test-release: setup-postgres ## build a release twice, in two places, compare the bytes and run it
	$(INSTALL_TEST) -run TestInstallRelease

vet: ## vet for Linux and macOS, and check that go.mod is tidy
	$(GO) vet ./...
	$(GO) mod tidy -diff
	GOOS=darwin $(GO) vet -gcflags='all=-N -l' ./...

test-postgres: setup-postgres setup-git setup-s3 ## test the database with each other PostgreSQL that Debian and its backports offer
	@$(FIND) GO=$(GO) .ci/test-postgres

check-all: ## check all, before a release: in sittings, as each part that passed on this commit stays so; PART=drill runs one
	@.ci/check-all '$(PART)'

check-fresh: ## run demo and test in an empty Debian as root, as an ordinary user and in a container; KEEP=1 keeps it
	@.ci/setup debootstrap podman
	@.ci/fresh

package: $(NFPM) ## write dist/takt_VERSION_ARCH.deb, the Debian package; VERSION=1.2.3 ARCH=arm64
	NFPM=$(NFPM) deploy/package/build $(or $(VERSION),0.0.0-dev) dist

test-package: $(NFPM) ## install, upgrade, remove and purge the Debian package in an empty Debian that systemd boots, as root
	@.ci/setup debootstrap
	@NFPM=$(NFPM) .ci/test-package

lint: $(LINT) $(LICENSES) ## check formats and lint, tests included, and that THIRD_PARTY.md is current
	$(LINT) run ./...
	@.ci/notices $(LICENSES) | diff THIRD_PARTY.md - || { echo "THIRD_PARTY.md is stale: make notices" >&2; exit 1; }

notices: $(LICENSES) ## write THIRD_PARTY.md anew
	@.ci/notices $(LICENSES) >THIRD_PARTY.md

vuln: $(VULN) ## look for known vulnerabilities, if their database can be reached
	@out=$$($(VULN) ./cmd/... 2>&1); code=$$?; echo "$$out"; \
	case "$$out" in *"fetching vulnerabilities"*) code=0; \
		echo "vuln: NOT CHECKED, the database of vulnerabilities cannot be reached" >&2;; esac; exit $$code

docs: setup-postgres ## write http/openapi.yaml, docs/settings.md, docs/cli.md, docs/metrics.md, deploy/grafana, docs/promises.md and migrations/schema.sql anew from the code
	$(GO) generate ./http/api ./cmd/internal/docs ./cmd/internal/mutants ./migrations

fmt: $(LINT) ## format everything
	$(LINT) fmt ./...

bench: setup-postgres setup-git ## run the Go benchmarks (ratios against a peer in the same run)
	$(GO) test -run '^$$' -bench . -benchmem -count 3 -timeout 30m $(PACKAGES)

bench-e2e: setup-postgres setup-git build ## start takt, PostgreSQL and the load generator, and print the ratios
	$(BIN)-bench

bench-against: setup-postgres setup-git build ## build the takt of COMMIT in a worktree of its own and compare with it; ONLY=A12,A13 ARGS='--rounds 5'
	@test -n "$(COMMIT)" || { echo "usage: make bench-against COMMIT=0e9fdba2 ONLY=A12,A12b,A13" >&2; exit 2; }
	@set -e; dir=$$(mktemp -d); trap 'git worktree remove --force $$dir/tree 2>/dev/null || true; rm -rf $$dir' EXIT; \
	git worktree add --quiet --detach $$dir/tree $(COMMIT); \
	(cd $$dir/tree && $(GO) build -trimpath -o $$dir/takt ./cmd/takt); \
	$(BIN)-bench --against $$dir/takt $(if $(ONLY),--only $(ONLY)) $(ARGS)

bench-peers: setup-postgres setup-peers build ## compare taking and ending jobs with beanstalkd, Redis streams, NATS JetStream and River; ARGS='--rounds 5'
	$(BIN)-bench peers --tools $(CACHE)/tools --nats $(NATS_SERVER) $(ARGS)

fuzz: setup-postgres ## fuzz every target for FUZZTIME (30s)
	@set -e; for p in $$($(GO) list ./...); do \
		list=$$($(GO) test -list '^Fuzz' $$p) || { echo "$$list"; exit 1; }; \
		for f in $$(echo "$$list" | grep '^Fuzz' || true); do \
			echo "$$p $$f"; $(GO) test -run '^$$' -parallel $$(getconf _NPROCESSORS_ONLN) -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$p; \
		done; done

mutants: $(SERVERS) ## break each mechanism that a promise stands on, and see its test fail; what is as when it was caught is not run, but with ALL=1; ONLY=REGEX runs some
	@.ci/setup pgbouncer
	@mkdir -p .cache
	TAKT_TEST_INSTALL=1 $(NEEDS) $(GO) run ./cmd/internal/mutants -only '$(ONLY)' $(if $(ALL),,-caught .cache/caught)

screenshots: setup-postgres setup-browser ## write pictures of every page (light, dark, phone, without JavaScript) to .cache/screenshots
	TAKT_SCREENSHOTS=$(abspath $(SCREENSHOTS)) $(GO) test -run TestDashboardScreenshots -timeout 5m -count 1 ./cmd/internal/e2e/operating

cover: $(SERVERS) ## measure test coverage into coverage.out
	$(FIND) $(GO) test -coverpkg ./... -coverprofile coverage.out -timeout 12m ./...
	$(GO) tool cover -func coverage.out | tail -n 1

db-reset: ## throw away the database and files of `make run`
	@if [ -e $(RUN_DIR)/lock ] && ! flock -n $(RUN_DIR)/lock true; then \
		echo "takt is running on $(RUN_DIR): stop it first" >&2; exit 1; fi
	rm -rf $(RUN_DIR)

announce:
	@.ci/setup announce setup-cc $(SERVERS)

setup-postgres:
	@.ci/setup postgres

setup-git:
	@.ci/setup git

setup-curl:
	@.ci/setup curl

setup-cc:
	@.ci/setup cc

setup-promtool:
	@.ci/setup promtool

setup-browser: $(AXE)
	@.ci/setup chromium

setup-webhooks: $(WEBHOOKS)
	@.ci/setup node

# What finds faults in the accessibility of pages.
$(AXE):
	@.ci/setup npm
	@echo "fetching axe-core $(AXE_VERSION), which the tests of the dashboard ask (once)"
	@mkdir -p $(dir $@)
	@cd $(dir $@) && npm pack --silent axe-core@$(AXE_VERSION) >/dev/null && \
		tar -xzf axe-core-$(AXE_VERSION).tgz --strip-components=1 package/axe.min.js && rm axe-core-$(AXE_VERSION).tgz

# The library of the Standard Webhooks specification.
$(WEBHOOKS):
	@.ci/setup npm
	@echo "fetching standardwebhooks $(WEBHOOKS_VERSION), with which tests verify notices (once)"
	@mkdir -p $(CACHE)/tools/standardwebhooks-$(WEBHOOKS_VERSION)
	@cd $(CACHE)/tools/standardwebhooks-$(WEBHOOKS_VERSION) && npm install --silent --no-save --prefix . standardwebhooks@$(WEBHOOKS_VERSION)

setup-s3: $(S3_SERVER)

# A real S3 server for the tests, in one file, as the linter.
$(S3_SERVER):
	@echo "building versitygw $(VERSITYGW), the S3 server of the tests (once)"
	@GOBIN=$(dir $@) $(GO) install github.com/versity/versitygw/cmd/versitygw@$(VERSITYGW)

setup-peers: $(NATS_SERVER)
	@.ci/setup beanstalkd redis

# One of the servers that takt is compared with.
$(NATS_SERVER):
	@echo "building nats-server $(NATS), which takt is compared with (once)"
	@GOBIN=$(dir $@) $(GO) install github.com/nats-io/nats-server/v2@$(NATS)

setup-podman: $(IMAGE_SERVER)
	@.ci/setup podman

# A real server of container images for the tests of the worker, in one file.
$(IMAGE_SERVER):
	@echo "building registry $(REGISTRY), the image server of the tests (once)"
	@GOBIN=$(dir $@) $(GO) install github.com/google/go-containerregistry/cmd/registry@$(REGISTRY)

setup-otel: $(COLLECTOR)

# The OpenTelemetry Collector, with only what the tests of traces need of it.
$(COLLECTOR):
	@echo "building the OpenTelemetry Collector $(OTEL), which the tests of traces ask (once)"
	@mkdir -p $(dir $@)build
	@GOBIN=$(abspath $(dir $@)) $(GO) install go.opentelemetry.io/collector/cmd/builder@$(OTEL)
	@sed "s|OUTPUT|$(dir $@)build|; s|VERSION|$(OTEL)|" .ci/otelcol.yaml >$(dir $@)build.yaml
	@$(dir $@)builder --config $(dir $@)build.yaml >$(dir $@)log 2>&1 || { cat $(dir $@)log; exit 1; }
	@mv $(dir $@)build/otelcol $@ && rm -rf $(dir $@)build $(dir $@)builder

$(NFPM):
	@echo "building nfpm $(NFPM_VERSION) (once)"
	@GOBIN=$(dir $@) $(GO) install github.com/goreleaser/nfpm/v2/cmd/nfpm@$(NFPM_VERSION)

$(LINT):
	@echo "building golangci-lint $(GOLANGCI_LINT) (once)"
	@GOBIN=$(dir $@) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT)

$(LICENSES):
	@echo "building go-licenses $(GO_LICENSES) (once)"
	@GOBIN=$(dir $@) $(GO) install github.com/google/go-licenses@$(GO_LICENSES)

$(VULN):
	@echo "building govulncheck $(GOVULNCHECK) (once)"
	@GOBIN=$(dir $@) $(GO) install golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK)
