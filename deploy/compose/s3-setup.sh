#!/bin/sh
# One-shot: the bucket, and a user for the registry that may do what deploy/s3-policy.json says and nothing else.
# The store's image holds `mc` and a shell, and no grep.
set -eu
mc alias set store http://s3:9000 "$MINIO_ROOT_USER" "$MINIO_ROOT_PASSWORD"
mc mb --ignore-existing store/aot
mc admin policy create store aot-registry /etc/aot/s3-policy.json
mc admin user add store "$AOT_S3_ACCESS_KEY" "$AOT_S3_SECRET_KEY"
mc admin policy attach store aot-registry --user "$AOT_S3_ACCESS_KEY" || true
# A second run finds the policy attached, which mc reports as an error: what counts is what holds now.
case "$(mc admin policy entities store --user "$AOT_S3_ACCESS_KEY")" in
    *aot-registry*) ;;
    *) echo "the policy aot-registry is not attached to the registry's user" >&2; exit 1 ;;
esac
