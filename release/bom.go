package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
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

// bom writes the bill of materials: which modules each program of the images has, as the programs say themselves, and which packages of
// Debian are in the proxies' image.
func (r release) bom(context.Context) (err error) {
	bom := cyclonedx.NewBOM()
	root := cyclonedx.Component{
		BOMRef: r.name(daemons), Type: cyclonedx.ComponentTypeContainer, Name: r.chart.Image.Repository, Version: r.version,
		Licenses: &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "Apache-2.0"}}},
	}
	lock, err := os.ReadFile(pinFile)
	if err != nil {
		return err
	}
	proxy := cyclonedx.Component{
		BOMRef: r.name(proxies), Type: cyclonedx.ComponentTypeContainer, Name: r.chart.Proxy.Image.Repository, Version: r.version,
	}
	bom.Metadata = &cyclonedx.Metadata{Timestamp: r.date.Format(time.RFC3339), Component: &root}
	needs := map[string][]string{} // by reference
	modules := map[string]cyclonedx.Component{}
	parts := []cyclonedx.Component{proxy}
	for _, a := range r.architectures {
		pins, err := readPins(string(lock), a)
		if err != nil {
			return err
		}
		for _, p := range pins {
			part := p.component()
			parts = append(parts, part)
			needs[proxy.BOMRef] = append(needs[proxy.BOMRef], part.BOMRef)
		}
		for _, i := range []image{daemons, proxies} {
			for _, file := range slices.Sorted(maps.Keys(i.programs)) {
				part, used, err := r.program(a, path.Base(i.programs[file]))
				if err != nil {
					return err
				}
				parts = append(parts, part)
				of := r.name(i)
				needs[of] = append(needs[of], part.BOMRef)
				for _, m := range used {
					modules[m.BOMRef] = m
					needs[part.BOMRef] = append(needs[part.BOMRef], m.BOMRef)
				}
			}
		}
	}
	for _, ref := range slices.Sorted(maps.Keys(modules)) {
		parts = append(parts, modules[ref])
	}
	bom.Components = &parts
	var dependencies []cyclonedx.Dependency
	for _, ref := range slices.Sorted(maps.Keys(needs)) {
		on := slices.Sorted(slices.Values(needs[ref]))
		dependencies = append(dependencies, cyclonedx.Dependency{Ref: ref, Dependencies: &on})
	}
	bom.Dependencies = &dependencies
	f, err := os.Create(filepath.Join(r.out, "sbom.cdx.json"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return cyclonedx.NewBOMEncoder(f, cyclonedx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cyclonedx.SpecVersion1_6)
}

// program describes a program and the modules in it.
func (r release) program(architecture, name string) (cyclonedx.Component, []cyclonedx.Component, error) {
	file := filepath.Join(r.binDir(architecture), name)
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return cyclonedx.Component{}, nil, fmt.Errorf("read what is in %s: %w", file, err)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return cyclonedx.Component{}, nil, err
	}
	// The linker reports nothing when there is no variable to stamp. The programs that a daemon starts have none.
	daemon := name == "controller" || name == "speaker" || name == "proxy"
	for _, stamp := range []string{r.version, r.commit, r.date.Format(time.RFC3339)} {
		if daemon && !bytes.Contains(content, []byte(stamp)) {
			return cyclonedx.Component{}, nil, fmt.Errorf("%s does not have %s in it", file, stamp)
		}
	}
	sum := sha256.Sum256(content)
	part := cyclonedx.Component{
		BOMRef: "linux/" + architecture + "/" + name, Type: cyclonedx.ComponentTypeApplication, Name: name, Version: r.version,
		Hashes:     &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
		Properties: &[]cyclonedx.Property{{Name: "platform", Value: "linux/" + architecture}},
	}
	used := []cyclonedx.Component{library("std", strings.TrimPrefix(info.GoVersion, "go"), "")}
	for _, m := range info.Deps {
		used = append(used, r.module(m))
	}
	return part, used, nil
}

// component describes a package of Debian.
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
	c := cyclonedx.Component{BOMRef: url, PackageURL: url, Type: cyclonedx.ComponentTypeLibrary, Name: path, Version: version}
	if sum != "" {
		// As go.sum has it: the sum of a tree of files, not of one.
		c.Properties = &[]cyclonedx.Property{{Name: "go.sum", Value: sum}}
	}
	return c
}
