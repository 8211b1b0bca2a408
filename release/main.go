// Command release makes what users install, from the commit that is checked out. The same commit gives the same bytes,
// in whatever directory. Version, commit and date come from git.
//
//	release binaries   the daemons for this machine, into bin/
//	release image      the image for this machine's architecture: dist/holdfast.tar
//	release proxy      the image of the proxies, too: dist/holdfast-proxy.tar
//	release chart      the packed chart: dist/holdfast-VERSION.tgz
//	release all        a release, for all architectures, in place of what is in dist/; pushed and signed if told to
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// release is one run of the command, in the root of the repository.
type release struct {
	source
	chart         chart
	out           string // directory
	helm, cosign  string // programs
	architectures []string
	pins          map[string][]pin // by architecture
	push          string           // HOST:PORT/PATH, or nothing
	key           string           // file, keyless, or nothing
}

func run(ctx context.Context) error {
	r := release{architectures: []string{runtime.GOARCH}}
	flag.StringVar(&r.out, "out", "dist", "`directory` to write into")
	flag.StringVar(&r.helm, "helm", filepath.Join("bin", "helm"), "`program` that packs the chart")
	flag.StringVar(&r.cosign, "cosign", filepath.Join("bin", "cosign"), "`program` that signs")
	flag.StringVar(&r.push, "push", "", "`HOST:PORT/PATH` of a registry, below which images and chart are pushed")
	flag.StringVar(&r.key, "key", "", "`file` of cosign's private key; keyless signs with the identity of a workflow")
	architectures := flag.String(
		"arch",
		strings.Join(everywhere, ","),
		"architectures of a release, separated by commas",
	)
	flag.Parse()
	var err1, err2, err3 error
	r.source, err1 = readSource(ctx)
	r.chart, err2 = readChart()
	r.pins, err3 = readPins(pinFile)
	if err := errors.Join(err1, err2, err3, os.MkdirAll(r.out, 0o755)); err != nil {
		return err
	}
	switch what := strings.Join(flag.Args(), " "); what {
	case "binaries":
		return r.compile(ctx, daemons, runtime.GOARCH, "bin")
	case "image":
		return r.pack(ctx, daemons)
	case "proxy":
		return r.pack(ctx, proxies)
	case "chart":
		return r.packChart(ctx)
	case "all":
		r.architectures = slices.Sorted(strings.SplitSeq(*architectures, ",")) // so that their order does not matter
		return r.all(ctx)
	default:
		return fmt.Errorf("got %q, want binaries, image, proxy, chart or all", what)
	}
}

func (r release) all(ctx context.Context) error {
	if r.modified {
		return errors.New("there are uncommitted changes: a release is made from a commit")
	}
	if err := r.checkPush(); err != nil {
		return err
	}
	log, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		return err
	}
	if err := released(string(log), r.version); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(r.out), os.MkdirAll(r.out, 0o755)); err != nil {
		return err
	}
	if err := r.readKey(ctx); err != nil {
		return err
	}

	if err := errors.Join(r.pack(ctx, daemons), r.pack(ctx, proxies)); err != nil {
		return err
	}
	steps := []func(context.Context) error{
		r.packChart,
		r.manifests,
		r.bom,
		r.provenance,
		r.airGap,
		r.plugin,
		r.sums,
		r.signSums,
		r.publish,
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (r release) binDir(architecture string) string {
	return filepath.Join("bin", "linux-"+architecture)
}

func (r release) packed() string { return filepath.Join(r.out, "holdfast-"+r.version+".tgz") }
