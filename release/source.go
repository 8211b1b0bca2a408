package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

// module is the path of the repository.
const module = "github.com/holdfast-lb/holdfast"

// source is the commit of a release.
type source struct {
	version, commit string
	// date is the date of the commit.
	date time.Time
	// modified reports whether the tree differs from the commit.
	modified bool
}

// readSource reads the commit that is checked out.
func readSource(ctx context.Context) (source, error) {
	commit, err := output(ctx, "git", "log", "-1", "--format=%H %cI")
	if err != nil {
		return source{}, err
	}

	tags, err := output(ctx, "git", "tag", "--points-at", "HEAD")
	if err != nil {
		return source{}, err
	}

	changes, err := output(ctx, "git", "status", "--porcelain")
	if err != nil {
		return source{}, err
	}

	hash, committed, _ := strings.Cut(commit, " ")
	date, err := time.Parse(time.RFC3339, committed)
	if err != nil {
		return source{}, fmt.Errorf("read the commit's date: %w", err)
	}

	s := source{
		commit:   hash,
		date:     date.UTC(),
		modified: changes != "",
	}
	s.version, err = s.name(strings.Fields(tags))
	return s, err
}

// versionTag is a tag of a release: v and a semantic version, without build metadata, which tags of images cannot have.
var versionTag = regexp.MustCompile(`^v((?:0|[1-9]\d*)\.(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)(?:-[0-9A-Za-z.-]+)?)$`)

// name returns the version of the commit's tags, or a version made of its date and hash.
func (s source) name(tags []string) (string, error) {
	var versions []string
	for _, t := range tags {
		m := versionTag.FindStringSubmatch(t)
		if m != nil {
			versions = append(versions, m[1])
		}
	}

	switch {
	case len(versions) > 1:
		return "", fmt.Errorf("the commit has the tags of several releases: %s", strings.Join(versions, ", "))
	case len(versions) == 1 && !s.modified:
		return versions[0], nil
	}

	// The length of Git's own abbreviations depends on the other commits of a clone.
	version := "0.0.0-" + s.date.Format("20060102") + "-" + s.commit[:7]
	if s.modified {
		version += "-modified"
	}

	return version, nil
}

// checkChangelog checks the changelog.
func (r release) checkChangelog(context.Context) error {
	log, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		return err
	}
	return released(string(log), r.version)
}

// released checks that the changelog has a heading for a version that is named by a tag.
func released(changelog, version string) error {
	if strings.HasPrefix(version, "0.0.0-") {
		return nil
	}

	heading := regexp.MustCompile(`(?m)^## ` + regexp.QuoteMeta(version) + `(?: \(\d{4}-\d\d-\d\d\))?$`)
	if !heading.MatchString(changelog) {
		return fmt.Errorf("CHANGELOG.md has no heading %q, with or without a date", "## "+version)
	}

	return nil
}

// output runs a program and returns its standard output, without the space around it.
func output(ctx context.Context, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		command := strings.Join(cmd.Args, " ")
		return "", fmt.Errorf("run %s: %w: %s", command, err, bytes.TrimSpace(stderr.Bytes()))
	}

	return string(bytes.TrimSpace(out)), nil
}
