package main

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/release/oci"
)

// TestSign: whoever has the public key can check the sums, and that the files and the image are of this commit; a changed file is noticed.
func TestSign(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("no openssl here")
	}
	dir := t.TempDir()
	public, private, err := ed25519.GenerateKey(nil)
	must(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	must(t, err)
	key := filepath.Join(t.TempDir(), "key.pem")
	for file, content := range map[string]string{
		key: string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), filepath.Join(dir, "holdfast-1.2.3.tgz"): "chart",
	} {
		must(t, os.WriteFile(file, []byte(content), 0o600))
	}
	for _, name := range []string{"holdfast", "holdfast-proxy"} {
		must(t, oci.Write(filepath.Join(dir, name+".tar"), oci.Program(name+":1.2.3", key)))
	}
	must(t, sums(dir))
	if out, err := exec.Command("./sign.sh", dir, key).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text := func(name string) string {
		content, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		return string(content)
	}
	decode := func(s string) []byte {
		raw, err := base64.StdEncoding.DecodeString(s)
		must(t, err)
		return raw
	}
	all := text("SHA256SUMS")
	signature := decode(text("SHA256SUMS.sig"))
	if !ed25519.Verify(public, []byte(all), signature) || ed25519.Verify(public, []byte(all+" "), signature) {
		t.Error("the signature of the sums is not of these sums alone")
	}
	var envelope struct {
		PayloadType, Payload string
		Signatures           []struct{ Sig string }
	}
	if err := json.Unmarshal([]byte(text("provenance.dsse.json")), &envelope); err != nil || len(envelope.Signatures) != 1 {
		t.Fatalf("%v: %+v", err, envelope)
	}
	payload := decode(envelope.Payload)
	// https://github.com/secure-systems-lab/dsse/blob/master/protocol.md
	encoded := fmt.Sprintf("DSSEv1 %d %s %d %s", len(envelope.PayloadType), envelope.PayloadType, len(payload), payload)
	if !ed25519.Verify(public, []byte(encoded), decode(envelope.Signatures[0].Sig)) {
		t.Error("the signature of the provenance is wrong")
	}
	var statement struct {
		Subject []struct {
			Name   string
			Digest map[string]string
		}
		Predicate struct {
			BuildDefinition struct {
				ExternalParameters   map[string]string
				ResolvedDependencies []struct{ Digest map[string]string }
			}
		}
	}
	if err := json.Unmarshal(payload, &statement); err != nil {
		t.Fatalf("%v: %s", err, payload)
	}
	if len(statement.Subject) != 5 {
		t.Fatalf("subjects %v", statement.Subject)
	}
	for _, s := range statement.Subject[:3] {
		if !strings.Contains(all, s.Digest["sha256"]+"  "+s.Name+"\n") {
			t.Errorf("the sums lack %v", s)
		}
	}
	for i, name := range []string{"holdfast", "holdfast-proxy"} {
		index, err := exec.Command("tar", "-xOf", filepath.Join(dir, name+".tar"), "index.json").Output()
		image := statement.Subject[3+i]
		if err != nil || image.Name != "docker.io/holdfastlb/"+name || !strings.Contains(string(index), `"sha256:`+image.Digest["sha256"]+`"`) {
			t.Errorf("%v: the image is not %v: %s", err, image, index)
		}
	}
	commit, err := exec.Command("git", "rev-parse", "HEAD").Output()
	build := statement.Predicate.BuildDefinition
	if err != nil || build.ExternalParameters["version"] != "1.2.3" || build.ResolvedDependencies[0].Digest["gitCommit"] != strings.TrimSpace(string(commit)) {
		t.Errorf("%v: made from %+v", err, build)
	}
}
