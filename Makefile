# Every target needs Go, make and root on Debian; bin/lab installs all other missing packages.

CONTROLLER_GEN := go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.23.0
STATICCHECK    := honnef.co/go/tools/cmd/staticcheck@v0.8.2
REVIVE         := go run github.com/mgechev/revive@v1.17.0
ACTIONLINT     := go run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
GOVULNCHECK    := go run golang.org/x/vuln/cmd/govulncheck@v1.9.0
HELM           := $(CURDIR)/bin/helm
RELEASE        := go run ./release -helm $(HELM)
# All compile in one way, as the release does, so that nothing is compiled twice. Only the race detector has its own, and
# needs cgo.
export CGO_ENABLED := 0
# go.mod names the oldest Go that compiles Holdfast. What is released and tested has this Go's security fixes: the go
# command downloads it from the module proxy. GOTOOLCHAIN=local on the command line takes the Go of the machine.
export GOTOOLCHAIN := go1.26.11
export GOFLAGS     += -trimpath
# The architectures of a release. The proxies' image is for those that release/haproxy.lock has packages for.
ARCHS          := amd64,arm,arm64,ppc64le,s390x
# The output directory of generate; lint generates into another one and compares.
OUT            := .

.PHONY: help
help: ## Show this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

.PHONY: demo
demo: image chart bin/lab ## Show Holdfast on this machine: lab, installation, traffic, a node that loses power
	go run ./e2e/cmd/demo $(ARGS)

.PHONY: demo-down
demo-down: lab-down ## Remove everything that the demo created

.PHONY: test
test: ## Everything: lint, unit tests, end-to-end tests
	@start=$$(date +%s); for stage in install lint test-unit test-e2e; do \
		echo "$$stage begins after $$(( ($$(date +%s) - start) / 60 )) minutes"; $(MAKE) $$stage || exit 1; done

.PHONY: test-unit
test-unit: bin/helm ## Unit tests with the race detector, fuzz seeds and network namespaces; slow ones without the detector
	CGO_ENABLED=1 GOFLAGS='$(filter-out -trimpath,$(GOFLAGS))' go test -race $$(go list ./... | grep -v -E '/internal/($(PURE))$$')
	go -C api/v1beta1 test ./...
	go test $$(go list ./... | grep -E '/internal/($(PURE))$$')
	go test ./internal/node
	go test -run 'History|StepAllocates|ManyRoutes' ./internal/bfd ./internal/bgp ./internal/heartbeat

# Packages that start no goroutine, as internal/house checks: the race detector has nothing to find in them.
PURE := config|detect|house|ipam|lb|plan

.PHONY: test-e2e
test-e2e: image proxy-image chart ## Tests on a real cluster in the lab, with both modes of kube-proxy
	go test -tags e2e -count=1 -timeout 70m ./e2e/...

.PHONY: e2e-kind
e2e-kind: kind-tools ## The same tests on kind; Docker, kind and images that are not there are made of packages
	bin/kindlab $(KINDLAB) run bin/e2e.test -on kind -test.run '^TestE2E$$' -test.timeout 60m -test.v $(ARGS)

.PHONY: kind-tools
kind-tools: image proxy-image chart
	go build -o bin/ ./e2e/kind/cmd/kindlab
	go build -o bin/ ./e2e/cmd/probe ./e2e/cmd/whohas
	go test -tags e2e -c -o bin/e2e.test ./e2e

.PHONY: test-oldest
test-oldest: bin/oldest/kube-apiserver bin/oldest/etcd ## Tests against the API server of the oldest supported Kubernetes, which is compiled first
	go test -tags oldest -run Oldest -count=1 -timeout 30m -v ./internal/house

# The release before the commit or, while there is none, the commit before.
FROM = $(shell git describe --tags --match 'v*' --abbrev=0 HEAD^ 2>/dev/null || git rev-parse HEAD^)

.PHONY: test-upgrade
test-upgrade: image chart ## Upgrade in the lab from what make release makes of an earlier commit, FROM=COMMIT: no request may fail
	from=$$(git rev-parse '$(FROM)^{commit}') && cache="$${XDG_CACHE_HOME:-$$HOME/.cache}/holdfast-release" && mkdir -p "$$cache" && \
	if [ ! -d "$$cache/$$from" ]; then \
		tree=$$(mktemp -d) && trap "git worktree remove --force $$tree || rm -rf $$tree" EXIT && trap 'exit 130' INT TERM HUP && git worktree add --detach $$tree $$from && \
		$(MAKE) -C $$tree release ARCHS=$$(go env GOARCH) && rm -rf "$$cache/partial" && \
		cp -r $$tree/dist "$$cache/partial" && mv "$$cache/partial" "$$cache/$$from"; \
	fi && \
	go test -tags e2e,upgrade -count=1 -timeout 30m -run TestUpgrade -v ./e2e -from "$$cache/$$from"

.PHONY: test-hostile
test-hostile: ## Ten thousand Services with and without one tenant's worst: none of the others' costs may double; as root
	go test -tags hostile -count=1 -timeout 30m -run TestHostile -v ./internal/node
	go test -count=1 -run 'TestTenants|TestStreams|TestSeats|TestPortMoves|TestTakenPort|TestInternal|TestKilledLook|TestLongKey' -v ./proxy

.PHONY: test-migration
test-migration: image chart ## In the lab, under load, from MetalLB's manifest and from its chart with FRR-K8s to Holdfast and back
	go test -tags e2e,migration -count=1 -timeout 40m -run TestMigration -v ./e2e

.PHONY: test-proxy
test-proxy: image proxy-image chart ## Proxies with nginx and HAProxy as guides configure them, and in the lab what takes long: update, drain, death of a node; ten minutes
	go test -tags proxy -count=1 -run TestGuides -v ./proxy
	go test -tags e2e,proxy -count=1 -timeout 30m -run TestProxy -v ./e2e

.PHONY: test-alerts
test-alerts: image proxy-image chart ## Alerts and dashboard in the lab, with a real Prometheus: each alert fires by a fault
	go test -tags e2e,alerts -count=1 -timeout 15m -run TestAlerts -v ./e2e

# The name of one network plugin; all have their turn without it.
PLUGIN :=

.PHONY: test-plugins
test-plugins: image chart ## Network plugins in the lab, each in a cluster of its own: PLUGIN=flannel-vxlan runs one; calico, cilium and cilium-kpr only so
	go test -tags e2e,plugins -count=1 -timeout 90m -run TestPlugins -v ./e2e -plugin '$(PLUGIN)' $(ARGS)

.PHONY: soak
soak: image chart ## Tests of about an hour: faults on a busy machine
	go test -tags e2e,soak -count=1 -timeout 2h -run TestSoak -v ./e2e

.PHONY: chaos
chaos: image chart ## Random faults on two networks for an hour, and a check of what was recorded; ARGS='-seed 7 -duration 10m'
	go test -tags e2e,chaos -count=1 -timeout 3h -run TestChaos -v ./e2e $(ARGS)

.PHONY: bench
bench: image proxy-image chart ## Run the benchmarks; ONLY=prefix selects by name
	go run ./e2e/cmd/bench -only '$(ONLY)' $(ARGS)

.PHONY: scale
scale: image proxy-image chart ## What a cluster of 1,000 nodes costs with 1,000, 3,000 and 10,000 Services, as numbers and as dist/scale.svg; half an hour
	go run ./e2e/cmd/bench -only scale_ -services 1000,3000,10000 -picture dist/scale.svg $(ARGS)

.PHONY: test-release
test-release: bin/helm bin/cosign bin/registry ## Push a small release to a registry on loopback, sign it, verify it, pull it; compiles cosign and the registry first
	go test -tags release -count=1 -timeout 10m -run TestSigned -v ./release

VULNDB := $(or $(GOVULNDB),https://vuln.go.dev)

.PHONY: vulncheck
vulncheck: ## Known vulnerabilities in the code that is called, by govulncheck; skipped loudly where its database, GOVULNDB, cannot be reached
	@if ! curl --fail --silent --show-error --location --max-time 30 --output /dev/null '$(VULNDB)/index/db.json'; then \
		echo "NOT CHECKED for vulnerabilities: this machine cannot reach the database $(VULNDB)" >&2; exit 0; fi; \
	$(GOVULNCHECK) -db '$(VULNDB)' ./... && $(GOVULNCHECK) -C api/v1beta1 -db '$(VULNDB)' ./...

.PHONY: lint
lint: bin/helm ## Check format, code, generated files and the chart
	@files=$$(gofmt -l .); test -z "$$files" || { echo "run gofmt -w on:" $$files; exit 1; }
	go vet -tags e2e,soak,oldest,upgrade,hostile,alerts,migration,proxy,release,plugins,chaos ./...
	go -C api/v1beta1 vet ./...
	go run $(STATICCHECK) -tags e2e,soak,oldest,upgrade,hostile,alerts,migration,proxy,release,plugins,chaos ./...
	go -C api/v1beta1 run $(STATICCHECK) ./...
	$(REVIVE) -config revive.toml -set_exit_status -exclude ./e2e/lab/tools/... ./...
	$(ACTIONLINT)
	@out=$$(mktemp -d); trap "rm -rf $$out" EXIT; trap 'exit 130' INT TERM HUP; $(MAKE) -s generate OUT=$$out && \
	(cd $$out && find * -type f) | while read f; do diff -u $$f $$out/$$f || exit 1; done || \
	{ echo "generated files are outdated: run make generate and commit the result"; exit 1; }
	$(HELM) lint --strict --quiet charts/holdfast

.PHONY: generate
generate: bin/helm ## Write the CRDs, the deep copies, config/ and docs/reference from the API types, the chart and the code
	mkdir -p $(OUT)/api/v1beta1 $(OUT)/config/crd $(OUT)/config/rbac $(OUT)/config/default $(OUT)/config/uninstall $(OUT)/charts/holdfast/crds
	$(CONTROLLER_GEN) paths=./api/... object output:object:dir=$(OUT)/api/v1beta1 crd output:crd:dir=$(OUT)/config/crd
	sed -i '/controller-gen.kubebuilder.io\/version/a\    helm.sh/resource-policy: keep' $(OUT)/config/crd/holdfast.dev_*.yaml
	cp $(OUT)/config/crd/holdfast.dev_*.yaml $(OUT)/charts/holdfast/crds/
	$(RENDER) -s templates/rbac.yaml -s templates/roles.yaml -s templates/admission.yaml > $(OUT)/config/rbac/rbac.yaml
	$(RENDER) -s templates/controller.yaml -s templates/speaker.yaml > $(OUT)/config/default/holdfast.yaml
	cp config/default/namespace.yaml $(OUT)/config/uninstall/
	$(RENDER) --set hooks=Always -s templates/uninstall.yaml | sed '/annotations:/d; /helm.sh\/hook/d' > $(OUT)/config/uninstall/uninstall.yaml
	[ $(OUT) != . ] || go test -count=1 -run TestReference ./internal/house -update

RENDER = $(HELM) template holdfast charts/holdfast --namespace holdfast-system

.PHONY: build
build: ## Compile the daemons, and the plugin of kubectl, into bin/
	$(RELEASE) binaries
	go build -trimpath -ldflags '-s -w' -o bin/ ./kubectl-holdfast

.PHONY: image
image: ## Compile the daemons and pack them into dist/holdfast.tar, for this machine's architecture
	$(RELEASE) image

.PHONY: proxy-image
proxy-image: ## Pack the proxies' program and HAProxy, of packages of Debian that it downloads once, into dist/holdfast-proxy.tar
	$(RELEASE) proxy

.PHONY: haproxy-pins
haproxy-pins: ## Write into release/haproxy.lock which packages of Debian HAProxy is made of today; needs apt
	release/pins.sh

.PHONY: chart
chart: bin/helm ## Pack the chart into dist/, with the version of the image
	$(RELEASE) chart

.PHONY: release
release: bin/helm $(if $(KEY),bin/cosign) ## Make all of a release in dist/, from a commit, signed with KEY=FILE (make cosign.key), pushed to PUSH=HOST:PORT/PATH
	$(RELEASE) -arch $(ARCHS) -push '$(PUSH)' -key '$(KEY)' all

cosign.key: | bin/cosign
	bin/cosign generate-key-pair

.PHONY: lab-up
lab-up: bin/lab ## Bring a cluster up on this machine; ARGS go to bin/lab up
	bin/lab up $(ARGS)

.PHONY: lab-down
lab-down: bin/lab ## Take the cluster down and remove all its files
	bin/lab down

.PHONY: install
install: bin/lab ## Install the Debian packages that tests and lab use
	bin/lab install

# go build itself detects whether the lab has changed; helm changes with its pinned version only.
.PHONY: bin/lab
bin/lab:
	go build -o bin/lab ./e2e/lab/cmd/lab

bin/helm: e2e/lab/tools/helm/go.mod
	go -C $(<D) build -ldflags '-s -w' -o $(HELM) helm.sh/helm/v4/cmd/helm

bin/cosign: e2e/lab/tools/cosign/go.mod
	go -C $(<D) build -ldflags '-s -w' -o $(CURDIR)/$@ github.com/sigstore/cosign/v3/cmd/cosign

bin/registry: e2e/lab/tools/registry/go.mod
	go -C $(<D) build -ldflags '-s -w' -o $(CURDIR)/$@ github.com/distribution/distribution/v3/cmd/registry

OLDEST := e2e/lab/tools/kubernetes131

# The server reports the version that it was stamped with; the daemons refuse one that is too old.
bin/oldest/kube-apiserver: $(shell find $(OLDEST) -type f)
	version=$$(sed -n 's/^require k8s.io\/kubernetes //p' $(OLDEST)/go.mod) && \
	go -C $(OLDEST) build -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$$version \
	-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=31" -o $(CURDIR)/$@ k8s.io/kubernetes/cmd/kube-apiserver

bin/oldest/etcd: e2e/lab/tools/etcd/go.mod
	go -C $(<D) build -ldflags '-s -w' -o $(CURDIR)/$@ go.etcd.io/etcd/server/v3
