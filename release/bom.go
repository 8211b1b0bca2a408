package main

import (
	"bytes"
	"cmp"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
)

// bom writes the bill of materials: which modules each program of the images has, as the programs say themselves, and
// which packages of Debian are in the proxies' image.
func (r release) bom(context.Context) (err error) {
	root, proxy := r.container(daemons), r.container(proxies)
	root.Licenses = &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "Apache-2.0"}}}
	// Both are by reference.
	parts, needs := map[string]cyclonedx.Component{proxy.BOMRef: proxy}, map[string][]string{}
	add := func(whole string, part cyclonedx.Component) {
		parts[part.BOMRef] = part
		needs[whole] = append(needs[whole], part.BOMRef)
	}
	for _, i := range []image{daemons, proxies} {
		for _, a := range r.platforms(i) {
			if i.haproxy {
				for _, p := range r.pins[a] {
					add(proxy.BOMRef, p.component())
				}
			}
			for _, pkg := range i.programs {
				program, used, err := r.program(a, path.Base(pkg))
				if err != nil {
					return err
				}
				add(r.name(i), program)
				for _, m := range used {
					add(program.BOMRef, m)
				}
			}
		}
	}
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Timestamp: r.date.Format(time.RFC3339), Component: &root}
	bom.Components, bom.Dependencies = new([]cyclonedx.Component), new([]cyclonedx.Dependency)
	for _, ref := range slices.Sorted(maps.Keys(parts)) {
		*bom.Components = append(*bom.Components, parts[ref])
	}
	for _, ref := range slices.Sorted(maps.Keys(needs)) {
		slices.Sort(needs[ref])
		*bom.Dependencies = append(*bom.Dependencies, cyclonedx.Dependency{Ref: ref, Dependencies: new(needs[ref])})
	}
	f, err := os.Create(r.bomFile())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return cyclonedx.NewBOMEncoder(f, cyclonedx.BOMFileFormatJSON).
		SetPretty(true).
		EncodeVersion(bom, cyclonedx.SpecVersion1_6)
}

func (r release) container(i image) cyclonedx.Component {
	name := r.name(i)
	return cyclonedx.Component{
		BOMRef:  name,
		Type:    cyclonedx.ComponentTypeContainer,
		Name:    strings.TrimSuffix(name, ":"+r.version),
		Version: r.version,
	}
}

func (r release) program(architecture, name string) (cyclonedx.Component, []cyclonedx.Component, error) {
	file := filepath.Join(r.binDir(architecture), name)
	info, err1 := buildinfo.ReadFile(file)
	content, err2 := os.ReadFile(file)
	if err := errors.Join(err1, err2); err != nil {
		return cyclonedx.Component{}, nil, fmt.Errorf("read what is in %s: %w", file, err)
	}
	// The linker reports nothing when there is no variable to stamp. The programs that a daemon starts have none.
	daemon := name == "controller" || name == "speaker" || name == "proxy"
	for _, stamp := range []string{r.version, r.commit, r.date.Format(time.RFC3339)} {
		if daemon && !bytes.Contains(content, []byte(stamp)) {
			return cyclonedx.Component{}, nil, fmt.Errorf("%s does not have %s in it", file, stamp)
		}
	}
	part := cyclonedx.Component{
		BOMRef:     "linux/" + architecture + "/" + name,
		Type:       cyclonedx.ComponentTypeApplication,
		Name:       name,
		Version:    r.version,
		Hashes:     &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: sumOf(content)}},
		Properties: &[]cyclonedx.Property{{Name: "platform", Value: "linux/" + architecture}},
	}
	used := []cyclonedx.Component{library("std", strings.TrimPrefix(info.GoVersion, "go"), "")}
	for _, m := range info.Deps {
		used = append(used, r.module(m))
	}
	return part, used, nil
}

func (p pin) component() cyclonedx.Component {
	url := "pkg:deb/debian/" + p.name + "@" + strings.NewReplacer("+", "%2B", ":", "%3A").Replace(p.version) +
		"?arch=" + p.architecture + "&distro=" + debianRelease
	return cyclonedx.Component{
		BOMRef: url, PackageURL: url, Type: cyclonedx.ComponentTypeLibrary, Name: p.name, Version: p.version,
		Hashes: &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: p.sum}},
	}
}

// module describes a module as it was compiled. A part of this repository has the version of the release.
func (r release) module(m *debug.Module) cyclonedx.Component {
	used := cmp.Or(m.Replace, m)
	if strings.HasPrefix(used.Path, "./") {
		return library(m.Path, "v"+r.version, "")
	}
	return library(used.Path, used.Version, used.Sum)
}

func library(path, version, sum string) cyclonedx.Component {
	// https://github.com/package-url/purl-spec: + of +incompatible is an escape of its own.
	url := "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
	c := cyclonedx.Component{
		BOMRef:     url,
		PackageURL: url,
		Type:       cyclonedx.ComponentTypeLibrary,
		Name:       path,
		Version:    version,
	}
	if sum != "" {
		// As go.sum has it: the sum of a tree of files, not of one.
		c.Properties = &[]cyclonedx.Property{{Name: "go.sum", Value: sum}}
	}
	return c
}
