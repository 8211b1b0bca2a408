//go:build release

package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/release/oci"
)

// startRegistry starts a registry on loopback, and returns its address and its directory.
func startRegistry(t *testing.T) (address, dir string) {
	t.Helper()
	program, err := filepath.Abs("../bin/registry")
	must(t, err)
	port, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address, dir = port.Addr().String(), t.TempDir()
	must(t, port.Close())
	file := filepath.Join(t.TempDir(), "config.yml")
	config := "version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %s}\n"
	must(t, os.WriteFile(file, fmt.Appendf(nil, config, dir, address), 0o600))

	var log bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, "serve", file)
	cmd.Stdout, cmd.Stderr = &log, &log
	must(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-ended
		if t.Failed() {
			t.Logf("the registry:\n%s", &log)
		}
	})
	deadline := time.After(time.Minute)
	for {
		answer, err := http.Get("http://" + address + "/v2/")
		if err == nil {
			_ = answer.Body.Close()
			return address, dir
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("the registry ended: %v", err)
		case <-deadline:
			t.Fatalf("the registry does not answer: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// newKey makes a pair of keys, and returns the private one's file; the public one's ends with .pub.
func newKey(t *testing.T, cosign string) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), cosign, "generate-key-pair")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return filepath.Join(dir, "cosign.key")
}

// TestSigned: whoever has the public key can verify images, chart and checksums of a release in a registry, how it was
// built and what is in it, without any service. Another key, another image, a changed chart and changed checksums are
// refused.
func TestSigned(t *testing.T) {
	address, storage := startRegistry(t)
	r := smallRelease(t, address+"/a/b")
	r.cosign = filepath.Join("bin", "cosign")
	// No service may be asked, and none of the machine's settings counts.
	for _, unreachable := range []string{"HTTP_PROXY", "HTTPS_PROXY"} {
		t.Setenv(unreachable, "http://127.0.0.1:1")
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("COSIGN_PASSWORD", "secret")
	r.key = newKey(t, abs(t, r.cosign))
	other := strings.TrimSuffix(newKey(t, abs(t, r.cosign)), ".key") + ".pub"

	must(t, os.WriteFile(r.bomFile(), []byte(`{"bomFormat":"CycloneDX","specVersion":"1.6","version":1}`), 0o600))
	for _, step := range []func() error{
		func() error { return r.readKey(t.Context()) },
		func() error { return r.provenance(t.Context()) },
		func() error { return r.sums(t.Context()) },
		func() error { return r.signSums(t.Context()) },
		func() error { return r.publish(t.Context()) },
	} {
		must(t, step())
	}

	public := filepath.Join(r.out, "cosign.pub")
	cosign := func(command, key string, args ...string) (string, error) {
		return output(t.Context(), append([]string{r.cosign, command, "--key", key, "--insecure-ignore-tlog"}, args...)...)
	}
	images := []string{r.name(daemons), r.name(proxies)}
	chart := r.charts() + "/holdfast:" + r.version
	all := append(images, chart)
	if _, err := cosign("verify", public, all...); err != nil {
		t.Error(err)
	}
	for _, reference := range all {
		if _, err := cosign("verify", other, reference); err == nil {
			t.Errorf("%s is signed with any key", reference)
		}
		if _, err := cosign("verify-attestation", other, "--type", "slsaprovenance1", reference); err == nil {
			t.Errorf("the provenance of %s is signed with any key", reference)
		}
		built := attested(t, cosign, public, "slsaprovenance1", reference)
		if !strings.Contains(built, `"gitCommit":"`+r.commit+`"`) {
			t.Errorf("%s is built from %s", reference, built)
		}
	}
	for _, reference := range images {
		parts := attested(t, cosign, public, "cyclonedx", reference)
		if !strings.Contains(parts, `"bomFormat":"CycloneDX"`) {
			t.Errorf("in %s is %s", reference, parts)
		}
	}

	sums := filepath.Join(r.out, "SHA256SUMS")
	bundle := []string{"--bundle", sums + ".sigstore.json", sums}
	if _, err := cosign("verify-blob", public, bundle...); err != nil {
		t.Error(err)
	}
	if _, err := cosign("verify-blob", other, bundle...); err == nil {
		t.Error("the checksums are signed with any key")
	}
	text, err := os.ReadFile(sums)
	must(t, err)
	must(t, os.WriteFile(sums, bytes.ToUpper(text), 0o600))
	if _, err := cosign("verify-blob", public, bundle...); err == nil {
		t.Error("any checksums are signed")
	}

	// Who can write to the registry replaces an image, and then a byte of the chart.
	archive := filepath.Join(t.TempDir(), "other.tar")
	must(t, oci.Write(archive, oci.Program(r.name(daemons), "CHANGELOG.md")))
	if _, err := pushImage(t.Context(), archive, r.name(daemons)); err != nil {
		t.Fatal(err)
	}
	if _, err := cosign("verify", public, r.name(daemons)); err == nil {
		t.Error("another image by the same tag is signed")
	}
	pull := []string{
		r.helm, "pull", "oci://" + r.charts() + "/holdfast", "--version", r.version, "--plain-http", "--destination",
	}
	if _, err := output(t.Context(), append(pull, t.TempDir())...); err != nil {
		t.Error(err)
	}
	changeBlob(t, storage, r.packed())
	if _, err := output(t.Context(), append(pull, t.TempDir())...); err == nil {
		t.Error("Helm takes a changed chart")
	}
}

func abs(t *testing.T, file string) string {
	t.Helper()
	out, err := filepath.Abs(file)
	must(t, err)
	return out
}

type verifier func(command, key string, args ...string) (string, error)

// attested returns the statement that is attested to a reference.
func attested(t *testing.T, cosign verifier, key, kind, reference string) string {
	t.Helper()
	out, err := cosign("verify-attestation", key, "--type", kind, reference)
	must(t, err)
	var envelope struct{ Payload string }
	must(t, json.Unmarshal([]byte(out), &envelope))
	statement, err := base64.StdEncoding.DecodeString(envelope.Payload)
	must(t, err)
	var compact bytes.Buffer
	must(t, json.Compact(&compact, statement))
	return compact.String()
}

// changeBlob changes a byte of what a registry stores of a file.
func changeBlob(t *testing.T, storage, file string) {
	t.Helper()
	content, err := os.ReadFile(file)
	must(t, err)
	changed := bytes.Clone(content)
	changed[len(changed)/2] ^= 1
	count := 0
	must(t, filepath.WalkDir(storage, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		stored, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(stored, content) {
			return err
		}
		count++
		return errors.Join(err, os.WriteFile(path, changed, 0o600))
	}))
	if count != 1 {
		t.Fatalf("the registry has the file %d times", count)
	}
}
