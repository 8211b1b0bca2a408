package k8s

import (
	"context"
	"crypto/tls"
	"net/http"
	"time"

	"golang.org/x/time/rate"
	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/util/cert"
)

// tokenRate is how many unknown tokens a second, and tokenBurst how many at once, the API server is asked about:
// whoever reaches the port of the metrics may send one.
const tokenRate, tokenBurst = 5, 10

// MetricsReaders returns a function that asks the API server whose token it is and whether that user may get /metrics,
// and returns the status of the answer. A token that was admitted lately waits for no other one.
func (c Clients) MetricsReaders() func(ctx context.Context, token string) int {
	known, asks := cache.NewExpiring(), rate.NewLimiter(tokenRate, tokenBurst)
	return func(ctx context.Context, token string) int {
		if _, reads := known.Get(token); reads {
			return http.StatusOK
		} else if token == "" {
			return http.StatusUnauthorized
		}
		if asks.Wait(ctx) != nil {
			return http.StatusServiceUnavailable
		}
		review, err := c.kube.tokenReviews.Create(
			ctx,
			&authentication.TokenReview{Spec: authentication.TokenReviewSpec{Token: token}},
			metav1.CreateOptions{},
		)
		if err != nil || !review.Status.Authenticated {
			return http.StatusUnauthorized
		}
		access, err := c.kube.accessReviews.Create(
			ctx,
			&authorization.SubjectAccessReview{Spec: authorization.SubjectAccessReviewSpec{
				User: review.Status.User.Username, UID: review.Status.User.UID, Groups: review.Status.User.Groups,
				NonResourceAttributes: &authorization.NonResourceAttributes{Path: "/metrics", Verb: "get"},
			}},
			metav1.CreateOptions{},
		)
		if err != nil || !access.Status.Allowed {
			return http.StatusForbidden
		}
		known.Set(token, nil, 10*time.Minute) // while the API server is away metrics are wanted most
		return http.StatusOK
	}
}

// SelfSigned returns a certificate that nothing vouches for.
func SelfSigned() (tls.Certificate, error) {
	certificate, key, err := cert.GenerateSelfSignedCertKeyWithOptions(
		cert.SelfSignedCertKeyOptions{Host: "holdfast", MaxAge: 10 * 365 * 24 * time.Hour},
	)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(certificate, key)
}
