// Command release makes the files that users install, from the commit that is checked out. The same commit gives the
// same bytes, in any directory. Version, commit and date come from git.
//
//	release binaries   the daemons for this machine, into bin/
//	release image      the image for this machine's architecture: dist/holdfast.tar
//	release proxy      the image of the proxies, too: dist/holdfast-proxy.tar
//	release chart      the packed chart: dist/holdfast-VERSION.tgz
//	release all        a release in dist/, for all architectures; pushed and signed by the flags -push and -key
//
// It must not use the network, but for the pinned packages of Debian and the registry of -push.
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
	chart chart
	// out is the directory of the files.
	out string
	// helm and cosign are programs.
	helm, cosign  string
	architectures []string
	// pins are the packages of HAProxy, by architecture.
	pins map[string][]pin
	// push is HOST:PORT/PATH of a registry; "" for none.
	push string
	// key is the file of the private key, or keyless; "" for no signature.
	key string
}

// run reads the flags, and makes the part that the argument names.
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

	err := r.readInputs(ctx)
	if err != nil {
		return err
	}

	err = os.MkdirAll(r.out, 0o755)
	if err != nil {
		return err
	}

	part := strings.Join(flag.Args(), " ")
	switch part {
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
		return fmt.Errorf("got %q, want binaries, image, proxy, chart or all", part)
	}
}

// readInputs reads the commit, the chart and the pinned packages.
func (r *release) readInputs(ctx context.Context) (err error) {
	r.source, err = readSource(ctx)
	if err != nil {
		return err
	}

	r.chart, err = readChart()
	if err != nil {
		return err
	}

	r.pins, err = readPins(pinFile)
	return err
}

// all makes a release.
func (r release) all(ctx context.Context) error {
	if r.modified {
		return errors.New("there are uncommitted changes: a release is made from a commit")
	}

	err := r.checkPush()
	if err != nil {
		return err
	}

	steps := []func(context.Context) error{
		r.checkChangelog,
		r.clear,
		r.readKey,
		r.packImages,
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
		err := step(ctx)
		if err != nil {
			return err
		}
	}

	return nil
}

// clear empties the directory of the files.
func (r release) clear(context.Context) error {
	err := os.RemoveAll(r.out)
	if err != nil {
		return err
	}
	return os.MkdirAll(r.out, 0o755)
}

// packImages packs both images.
func (r release) packImages(ctx context.Context) error {
	err := r.pack(ctx, daemons)
	if err != nil {
		return err
	}
	return r.pack(ctx, proxies)
}

// binDir returns the directory of the programs for an architecture.
func (r release) binDir(architecture string) string {
	return filepath.Join("bin", "linux-"+architecture)
}

// packed returns the file of the packed chart.
func (r release) packed() string {
	return filepath.Join(r.out, "holdfast-"+r.version+".tgz")
}
