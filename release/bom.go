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

// bom writes the bill of materials: the modules of each program, as the programs report themselves, and the packages of
// Debian in the proxies' image.
func (r release) bom(context.Context) (err error) {
	m := materials{
		parts:        map[string]cyclonedx.Component{},
		dependencies: map[string][]string{},
	}
	err = r.addImages(&m)
	if err != nil {
		return err
	}

	root := r.container(daemons)
	root.Licenses = &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "Apache-2.0"}}}
	bom := m.encode()
	bom.Metadata = &cyclonedx.Metadata{
		Timestamp: r.date.Format(time.RFC3339),
		Component: &root,
	}

	f, err := os.Create(r.bomFile())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()

	encoder := cyclonedx.NewBOMEncoder(f, cyclonedx.BOMFileFormatJSON)
	return encoder.SetPretty(true).EncodeVersion(bom, cyclonedx.SpecVersion1_6)
}

// materials are the components of a bill of materials.
type materials struct {
	// parts are the components without the root, by reference.
	parts map[string]cyclonedx.Component
	// dependencies are the references of the components that a component has, by its reference.
	dependencies map[string][]string
}

// add adds a component that another one has.
func (m *materials) add(whole string, part cyclonedx.Component) {
	m.parts[part.BOMRef] = part
	m.dependencies[whole] = append(m.dependencies[whole], part.BOMRef)
}

// encode returns the bill of materials, ordered by reference.
func (m *materials) encode() *cyclonedx.BOM {
	components := []cyclonedx.Component{}
	for _, ref := range slices.Sorted(maps.Keys(m.parts)) {
		components = append(components, m.parts[ref])
	}

	dependencies := []cyclonedx.Dependency{}
	for _, ref := range slices.Sorted(maps.Keys(m.dependencies)) {
		parts := slices.Sorted(slices.Values(m.dependencies[ref]))
		dependencies = append(dependencies, cyclonedx.Dependency{Ref: ref, Dependencies: &parts})
	}

	bom := cyclonedx.NewBOM()
	bom.Components = &components
	bom.Dependencies = &dependencies
	return bom
}

// addImages adds the components of both images.
func (r release) addImages(m *materials) error {
	proxy := r.container(proxies)
	m.parts[proxy.BOMRef] = proxy
	for _, i := range []image{daemons, proxies} {
		for _, a := range r.platforms(i) {
			err := r.addPlatform(m, i, a)
			if err != nil {
				return err
			}
		}
	}

	return nil
}

// addPlatform adds the components of an image for one architecture.
func (r release) addPlatform(m *materials, i image, architecture string) error {
	if i.haproxy {
		for _, p := range r.pins[architecture] {
			m.add(r.name(i), p.component())
		}
	}

	for _, pkg := range i.programs {
		program, modules, err := r.program(architecture, path.Base(pkg))
		if err != nil {
			return err
		}

		m.add(r.name(i), program)
		for _, module := range modules {
			m.add(program.BOMRef, module)
		}
	}

	return nil
}

// container returns the component of an image.
func (r release) container(i image) cyclonedx.Component {
	return cyclonedx.Component{
		BOMRef:  r.name(i),
		Type:    cyclonedx.ComponentTypeContainer,
		Name:    r.repository(i),
		Version: r.version,
	}
}

// program returns the component of a program for an architecture, and its modules.
func (r release) program(architecture, name string) (cyclonedx.Component, []cyclonedx.Component, error) {
	file := filepath.Join(r.binDir(architecture), name)
	info, infoErr := buildinfo.ReadFile(file)
	content, readErr := os.ReadFile(file)
	err := errors.Join(infoErr, readErr)
	if err != nil {
		return cyclonedx.Component{}, nil, fmt.Errorf("read what is in %s: %w", file, err)
	}

	err = r.checkStamps(file, content)
	if err != nil {
		return cyclonedx.Component{}, nil, err
	}

	platform := "linux/" + architecture
	hash := cyclonedx.Hash{Algorithm: cyclonedx.HashAlgoSHA256, Value: sumOf(content)}
	part := cyclonedx.Component{
		BOMRef:     platform + "/" + name,
		Type:       cyclonedx.ComponentTypeApplication,
		Name:       name,
		Version:    r.version,
		Hashes:     &[]cyclonedx.Hash{hash},
		Properties: &[]cyclonedx.Property{{Name: "platform", Value: platform}},
	}

	standard := library("std", strings.TrimPrefix(info.GoVersion, "go"), "")
	modules := []cyclonedx.Component{standard}
	for _, m := range info.Deps {
		modules = append(modules, r.module(m))
	}

	return part, modules, nil
}

// checkStamps checks that a daemon has version, commit and date. The linker reports nothing when there is no variable
// to stamp. The programs that a daemon starts have none.
func (r release) checkStamps(file string, content []byte) error {
	isDaemon := slices.Contains([]string{"controller", "speaker", "proxy"}, filepath.Base(file))
	if !isDaemon {
		return nil
	}

	stamps := []string{r.version, r.commit, r.date.Format(time.RFC3339)}
	for _, stamp := range stamps {
		if !bytes.Contains(content, []byte(stamp)) {
			return fmt.Errorf("%s does not have %s in it", file, stamp)
		}
	}

	return nil
}

// component returns the component of a package.
func (p pin) component() cyclonedx.Component {
	version := strings.NewReplacer("+", "%2B", ":", "%3A").Replace(p.version)
	url := "pkg:deb/debian/" + p.name + "@" + version + "?arch=" + p.architecture + "&distro=" + debianRelease
	hash := cyclonedx.Hash{Algorithm: cyclonedx.HashAlgoSHA256, Value: p.sum}
	return cyclonedx.Component{
		BOMRef:     url,
		PackageURL: url,
		Type:       cyclonedx.ComponentTypeLibrary,
		Name:       p.name,
		Version:    p.version,
		Hashes:     &[]cyclonedx.Hash{hash},
	}
}

// module returns the component of a module as it was compiled. A part of this repository has the version of the
// release.
func (r release) module(m *debug.Module) cyclonedx.Component {
	used := cmp.Or(m.Replace, m)
	if strings.HasPrefix(used.Path, "./") {
		return library(m.Path, "v"+r.version, "")
	}
	return library(used.Path, used.Version, used.Sum)
}

// library returns the component of a Go module.
func library(module, version, sum string) cyclonedx.Component {
	// https://github.com/package-url/purl-spec: + of +incompatible is an escape of its own.
	url := "pkg:golang/" + module + "@" + strings.ReplaceAll(version, "+", "%2B")
	c := cyclonedx.Component{
		BOMRef:     url,
		PackageURL: url,
		Type:       cyclonedx.ComponentTypeLibrary,
		Name:       module,
		Version:    version,
	}
	if sum != "" {
		// The sum of a tree of files, in the form of go.sum.
		c.Properties = &[]cyclonedx.Property{{Name: "go.sum", Value: sum}}
	}

	return c
}
