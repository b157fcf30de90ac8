"""Papers that an accountant closes a month from: receipts, credit notes, invoices, statements (docs/invoices.md).

`document` says what a paper can contain; `pdf` and `csv_file` print any document; the other modules fill them. Imports
`billing.models`, `billing.stripe.checkout` and what reads the books.
"""
