// Command ociimage packs static binaries into a container image, as a tar
// that "ctr images import" and "lab image load" take.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/holdfast-lb/holdfast/e2e/lab/oci"
)

// files collects -file IMAGEPATH=SOURCE.
type files map[string]oci.File

// String is part of flag.Value.
func (f files) String() string { return "" }

// Set is part of flag.Value.
func (f files) Set(s string) error {
	dst, src, ok := strings.Cut(s, "=")
	if !ok {
		return fmt.Errorf("%q: want IMAGEPATH=SOURCE", s)
	}
	f[dst] = oci.File{Source: src, Mode: 0o755}
	return nil
}

// list collects a flag that may be given again.
type list []string

// String is part of flag.Value.
func (w *list) String() string { return strings.Join(*w, " ") }

// Set is part of flag.Value.
func (w *list) Set(s string) error {
	*w = append(*w, s)
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "ociimage:", err)
		os.Exit(1)
	}
}

func run() error {
	img := oci.Image{Files: make(map[string]oci.File)}
	out := flag.String("o", "", "tar to write")
	flag.StringVar(&img.Name, "name", "", "full name of the image: docker.io/lab/echo:v1")
	flag.StringVar(&img.User, "user", "", "user, as UID[:GID]")
	flag.Var(files(img.Files), "file", "executable in the image, as IMAGEPATH=SOURCE; may be repeated")
	flag.Var((*list)(&img.Entrypoint), "entrypoint", "argument of the entrypoint; may be repeated")
	flag.Var((*list)(&img.Env), "env", "variable, as NAME=VALUE; may be repeated")
	flag.Parse()
	if *out == "" || img.Name == "" || len(img.Files) == 0 || flag.NArg() > 0 {
		flag.Usage()
		return errors.New("-o, -name and -file are required")
	}
	f, err := os.Create(*out)
	if err != nil {
		return err
	}
	return errors.Join(oci.Write(f, img), f.Close())
}
